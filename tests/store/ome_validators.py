"""The opinions of other libraries on images, plates and collections that Weft writes."""

import importlib
import warnings
from pathlib import Path

import yaozarrs
import zarr


def optional(name):
    """A library that may not be installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError:
        return None


def is_accepted(path):
    """The opinion of yaozarrs on a store; a warning is an error here."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yaozarrs.validate_zarr_store(str(path))
    return True


def by_ome_zarr_models(path):
    """The model that ome-zarr-models makes of a group; it reads every level's metadata."""
    models = optional("ome_zarr_models")
    if models is None:
        return None
    group = zarr.open_group(path, mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if "bioformats2raw.layout" in group.attrs.asdict()["ome"]:
            return importlib.import_module(
                "ome_zarr_models.v05.bioformats2raw"
            ).BioFormats2Raw.from_zarr(group)
        return models.open_ome_zarr(group, version="0.5")


def by_ome_zarr_py(path):
    """The nodes that ome-zarr-py reads at a path, as it lists them."""
    reader, io = optional("ome_zarr.reader"), optional("ome_zarr.io")
    if reader is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(reader.Reader(io.parse_url(path))())


def by_ngff_zarr(path):
    """The image that ngff-zarr reads at a path, its metadata validated against the schema."""
    ngff = optional("ngff_zarr")
    if ngff is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ngff.from_ngff_zarr(str(path), validate=True)


def ome_xml(path):
    """The OME-XML of a collection, as ome-types reads it: validated against the schema."""
    types = optional("ome_types")
    if types is None:
        return None
    file = Path(path, "OME", "METADATA.ome.xml")
    return types.from_xml(file.read_text(encoding="utf-8"), validate=True)

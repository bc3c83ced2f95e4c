"""Positions: images of one recording that are not on a plate, in a collection.

The layout is the one of bioformats2raw that OME-NGFF 0.5 describes: images 0, 1, …, which the group
`OME` lists in its attribute `series`, and describes in OME-XML.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, overload

from weft.errors import WeftError
from weft.store.attributes import change_attributes
from weft.store.create import locked, open_array
from weft.store.dtypes import as_dtype
from weft.store.hierarchy import (
    member_of,
    not_pending,
    read_group,
    read_node,
    read_ome,
    sink_of,
    write_group,
)
from weft.store.ome.image import Image, ImageWriter, merged, open_image
from weft.store.ome.image_group import ImageGroupWriter, new_group
from weft.store.ome.metadata import VERSION, as_ome
from weft.store.ome.xml import MAX_XML, PIXEL_TYPES, ImageDescription, OmeXml, planes_of
from weft.store.sink import Lock, Sink, Url
from weft.store.target import OME_XML, recover, series_of
from weft.store.view import HoldsArrays
from weft.values import counted

LAYOUT = {"version": VERSION, "bioformats2raw.layout": 3}
"""The metadata of a collection."""


def create_positions(
    url: Url | Sink,
    *,
    attributes: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    fsync: bool = False,
    options: Mapping[str, Any] | None = None,
    **image: Any,
) -> PositionsWriter:
    """Create a recording of several positions; `image` are arguments of `create_image` for all.

    A position is listed as soon as its image exists: metadata list what exists, at any moment.

    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     image = {"shape": (None, 4, 4), "dtype": "uint8", "chunks": (1, 4, 4), "axes": "tyx"}
    ...     with create_positions(f"{folder}/run.zarr", **image) as recording:
    ...         for name in ("left", "right"):
    ...             _ = recording.position(name)
    ...         for step in range(3):
    ...             for name in ("right", "left"):
    ...                 recording[name].append(np.full((4, 4), step, "uint8"))
    ...     positions = open_positions(f"{folder}/run.zarr")
    ...     print(positions.names, positions["right"].levels[0].shape)
    ('left', 'right') (3, 4, 4)
    """
    sink = sink_of(url, options=options, fsync=fsync)
    document = merged({"ome": LAYOUT}, attributes, "attributes")
    with new_group(sink, document, overwrite=overwrite) as lock:
        return PositionsWriter(sink, {"overwrite": overwrite} | image, lock)


class PositionsWriter(ImageGroupWriter):
    """Records positions, in any order; used in a `with` block. Any thread may create positions."""

    def __init__(self, sink: Sink, image: Mapping[str, Any], lock: Lock) -> None:
        super().__init__(sink, image, lock)
        self._paths = list(map(str, series_of(sink)))
        self._names = dict[str, str]()
        """The paths of positions, by name."""
        fetched = sink.fetch(OME_XML, 0, MAX_XML + 1)
        self._had_xml = fetched is not None
        try:
            self._xml: OmeXml | None = OmeXml(None if fetched is None else bytes(fetched.data))
        except WeftError as error:
            raise error.at(f"{sink.url}/{OME_XML}") from None
        self._xml.truncate(len(self._paths))
        for number, path in enumerate(self._paths):
            image_ = open_image(member_of(sink, path))
            self._names[image_.name or path] = path
            self._describe(number, described(image_))
        if self._paths and "ome" not in read_group(sink):
            change_attributes(sink, not_pending)  # a writer was killed before it did
        self.watch()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the positions, in the order in which they were created."""
        return tuple(self._names)

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, position: str | int) -> ImageWriter:
        """Return the writer of a position; one of an earlier recording is continued."""
        with self._lock:
            return self._continue(path_of(position, self._paths, self._names, self.url))

    def position(self, name: str | None = None, **image: Any) -> ImageWriter:
        """Create the image of a position; arguments that are not given are those of all.

        The position of the stage is `translation`, as in {"y": 1200.0, "x": -350.0}.
        """
        with self._lock:
            self._check_open()
            path = str(len(self._paths))
            label = path if name is None else name
            if label in self._names:
                raise WeftError(f"{self.url} has a position {label!r} already")
            self._check_dtype(label, (self._image | image).get("dtype"))
            writer = self._create(path, {"name": label} | image)
            try:
                self._list(path, label, writer)
            except BaseException:
                writer.close()
                raise
            self._writers[path] = writer
            return writer

    def _list(self, path: str, name: str, writer: ImageWriter) -> None:
        """List a position in the metadata, from the inside to the outside."""
        number, group = len(self._paths), self._sink.below("OME")
        self._describe(number, described(writer))
        self._write_xml()
        series = {"version": VERSION, "series": [*self._paths, path]}
        # A writer that was killed may have left images and no group, or a group that is pending.
        if read_node(group) is None:
            write_group(group, {"ome": series})
        else:
            change_attributes(group, lambda found: found.setdefault("ome", {}).update(series))
        if "ome" not in read_group(self._sink):
            change_attributes(self._sink, not_pending)
        self._paths.append(path)
        self._names[name] = path

    # -- OME-XML

    def _check_dtype(self, name: str, dtype: Any) -> None:
        """Refuse pixels that OME-XML has no name for, where there is one that others wrote to."""
        if self._had_xml and dtype is not None and as_dtype(dtype)[0] not in PIXEL_TYPES:
            raise WeftError(
                f"position {name!r} has pixels of {as_dtype(dtype)[0]}, which OME-XML cannot "
                f"describe, and {self.url} has {OME_XML}",
                hint=f"remove that file, or choose one of {', '.join(PIXEL_TYPES)}",
            )

    def _describe(self, number: int, image: ImageDescription) -> None:
        if image.dtype not in PIXEL_TYPES:
            self._xml = None  # OME-XML has no such pixels, and must describe every image
        if self._xml is not None:
            self._xml.describe(number, image)

    def _write_xml(self) -> None:
        if self._xml is None and not self._had_xml:
            self._sink.delete(OME_XML)
        elif self._xml is not None:
            self._sink.put(OME_XML, self._xml.to_bytes())

    def _update_xml(self) -> None:
        for path, writer in self._writers.items():
            self._describe(self._paths.index(path), described(writer))
        if self._paths:
            self._write_xml()

    def flush(self) -> None:
        """Make all frames that were appended visible, and describe them in OME-XML.

        No other thread may append meanwhile.
        """
        super().flush()
        with self._lock:
            self._update_xml()

    def _closed(self) -> None:
        self._update_xml()


def described(image: Image | ImageWriter) -> ImageDescription:
    """Return what OME-XML says about an image: its planes are those that are safe."""
    if isinstance(image, ImageWriter):
        array, shape = open_array(image.levels[0].sink), image.shape
    else:
        array, shape = image.levels[0], image.levels[0].shape
    planes = planes_of(array.frames, image.metadata.axes, shape)
    return ImageDescription(image.metadata, shape, array.metadata.dtype, image.channels, planes)


def path_of(position: str | int, paths: list[str], names: Mapping[str, str], url: str) -> str:
    """Return the path of a position, given by number or by name."""
    if isinstance(position, str) and position in names:
        return names[position]
    if isinstance(position, int) and not isinstance(position, bool):
        if -len(paths) <= position < len(paths):
            return paths[position]
        raise WeftError(f"{url} has {len(paths)} positions, and no position {position}")
    raise WeftError(f"{url} has no position {position!r}", hint=f"it has {', '.join(names)}")


@dataclass(frozen=True, slots=True, repr=False)
class StoredPositions(HoldsArrays):
    """The images of a stored recording of several positions, by number or by name."""

    _ARRAYS = "positions[0].levels[0]"
    sink: Sink
    paths: tuple[str, ...]
    """The paths of its images, in order."""
    attrs: Mapping[str, Any]

    @property
    def url(self) -> str:
        """Where the recording is."""
        return self.sink.url

    def __repr__(self) -> str:
        return f"<StoredPositions {counted(len(self), 'position')} at {self.url}>"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the positions."""
        return tuple(image.name or path for path, image in zip(self.paths, self))

    def __len__(self) -> int:
        return len(self.paths)

    def __iter__(self) -> Iterator[Image]:
        return (self._open(path) for path in self.paths)

    def __getitem__(self, position: str | int) -> Image:
        names = dict(zip(self.names, self.paths)) if isinstance(position, str) else {}
        return self._open(path_of(position, list(self.paths), names, self.url))

    def _open(self, path: str) -> Image:
        return open_image(member_of(self.sink, path))

    @property
    def ome_xml(self) -> str | None:
        """The description of all images in OME-XML; None where there is none."""
        fetched = self.sink.fetch(OME_XML, 0, MAX_XML + 1)
        return None if fetched is None else bytes(fetched.data).decode()


@overload
def open_positions(
    url: Url | Sink, mode: Literal["r"] = "r", *, options: Mapping[str, Any] | None = None
) -> StoredPositions: ...


@overload
def open_positions(
    url: Url | Sink,
    mode: Literal["a"],
    *,
    fsync: bool = False,
    options: Mapping[str, Any] | None = None,
    **image: Any,
) -> PositionsWriter: ...


def open_positions(
    url: Url | Sink,
    mode: str = "r",
    *,
    fsync: bool = False,
    options: Mapping[str, Any] | None = None,
    **image: Any,
) -> StoredPositions | PositionsWriter:
    """Open a recording of several positions to read it, or with mode "a" to continue it.

    With mode "a", `recording[name]` continues a position after the frames that are safe, and
    `recording.position(name)` adds one; `image` are arguments of `create_image` for those.
    """
    if mode not in ("r", "a"):
        raise WeftError(f"mode is 'r' or 'a', got {mode!r}")
    sink = sink_of(url, options=options, fsync=fsync)
    attributes = _read_collection(sink)
    if mode == "r":
        if image:
            raise WeftError(f"{', '.join(image)}: these are for mode 'a'")
        return StoredPositions(sink, tuple(map(str, series_of(sink))), attributes)
    read_group(sink)  # refuses Zarr v2
    with locked(sink) as lock:
        recover(sink)
        _read_collection(sink)
        sink.sweep()
        return PositionsWriter(sink, image, lock)


def _read_collection(sink: Sink) -> Mapping[str, Any]:
    """Return the attributes of a collection."""
    attributes, ome = read_ome(sink)
    layout = as_ome(ome, "bioformats2raw.layout")["bioformats2raw.layout"]
    if layout != 3:
        raise WeftError(f"{sink.url}: bioformats2raw.layout: 3 is supported, got {layout!r}")
    return attributes

"""OME-XML: the description of all images of a collection, in the file `OME/METADATA.ome.xml`.

A description that exists is updated: names, colours, units and all else that others wrote stay, and
sizes follow the arrays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import isfinite
from typing import Any, NamedTuple
from xml.etree import ElementTree

from weft.errors import WeftError
from weft.store.frames import PLANE_KEYS, FrameTable
from weft.store.ome.channels import Channel
from weft.store.ome.metadata import PREFIXES, Axis, Multiscale
from weft.values import Point

NAMESPACE = "http://www.openmicroscopy.org/Schemas/OME/2016-06"
_SCHEMA = f"{NAMESPACE} {NAMESPACE}/ome.xsd"
_INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"

MAX_XML = 1 << 28
"""The most bytes of OME-XML that are read."""

PIXEL_TYPES = {
    "bool": "bit",
    "float32": "float",
    "float64": "double",
    "complex64": "complex",
    "complex128": "double-complex",
} | {name: name for name in ("int8", "int16", "int32", "uint8", "uint16", "uint32")}
"""The names of dtypes in OME-XML; it has no others."""

_SYMBOLS = ("y", "z", "a", "f", "p", "n", "µ", "m", "c", "d", "", *"hkMGTPEZY")
_UNITS = {
    f"{prefix}{unit}": f"{symbol}{short}"
    for prefix, symbol in zip(PREFIXES, _SYMBOLS)
    for unit, short in (("meter", "m"), ("second", "s"))
} | {
    "angstrom": "Å",
    "foot": "ft",
    "inch": "in",
    "mile": "mi",
    "parsec": "pc",
    "yard": "yd",
    "minute": "min",
    "hour": "h",
    "day": "d",
}
"""The units of OME-NGFF, and their symbols in OME-XML."""


class Plane(NamedTuple):
    """What is known about one plane of an image, under the names of `PLANE_KEYS`."""

    z: int
    c: int
    t: int
    known: Mapping[str, float]


_PLANE_ATTRIBUTES = {
    "delta_t": ("DeltaT", "s"),
    "exposure_time": ("ExposureTime", "s"),
    "position_x": ("PositionX", "µm"),
    "position_y": ("PositionY", "µm"),
    "position_z": ("PositionZ", "µm"),
}
"""The attributes of a plane, and their units, by the names of `PLANE_KEYS`."""


def planes_of(frames: FrameTable, axes: Sequence[Axis], shape: Point) -> Iterator[Plane]:
    """Yield the planes of the frames whose metadata say something that OME-XML has a name for.

    Where a frame has several planes, all of them have its metadata.
    """
    letters = _letters(axes)
    places = [letters[dim] for dim in frames.dims]
    inside = [
        (letter, size)
        for dim, (letter, size) in enumerate(zip(letters, shape))
        if dim not in frames.dims and letter in "zct"
    ]
    for at, metadata in zip(frames.indices.tolist(), frames):
        known = {key: metadata[key] for key in PLANE_KEYS if _is_number(metadata.get(key))}
        if not known:
            continue
        for within in product(*(range(size) for _, size in inside)):
            place = dict(zip(places, at)) | dict(zip((letter for letter, _ in inside), within))
            yield Plane(place.get("z", 0), place.get("c", 0), place.get("t", 0), known)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


class ImageDescription(NamedTuple):
    """What OME-XML says about an image."""

    metadata: Multiscale
    shape: Point
    dtype: str
    channels: tuple[Channel, ...] = ()
    planes: Iterable[Plane] = ()


class OmeXml:
    """The OME-XML of a collection, one `Image` for each of its images, in their order."""

    def __init__(self, text: bytes | None = None) -> None:
        self._root = ElementTree.Element("OME") if text is None else _parse(text)
        self._root.set("xmlns", NAMESPACE)
        self._root.set(f"{{{_INSTANCE}}}schemaLocation", _SCHEMA)
        if text is None:
            self._root.set("Creator", "weft.store")

    @property
    def count(self) -> int:
        """The number of images."""
        return len(self._root.findall("Image"))

    def truncate(self, count: int) -> None:
        """Keep the first images."""
        for image in self._root.findall("Image")[count:]:
            self._root.remove(image)

    def describe(self, number: int, image: ImageDescription) -> None:
        """Describe an image that is there, or the next one."""
        images = self._root.findall("Image")
        if number < len(images):
            element = images[number]
        else:
            element = ElementTree.Element("Image")
            self._root.insert(self._end_of_images(), element)
        _describe(element, number, image)

    def _end_of_images(self) -> int:
        """Return where the next image goes: after others, and before what must follow them."""
        for place, child in reversed(list(enumerate(self._root))):
            if child.tag not in ("StructuredAnnotations", "ROI"):
                return place + 1
        return 0

    def to_bytes(self) -> bytes:
        """Return the text of the file."""
        ElementTree.indent(self._root)
        text: bytes = ElementTree.tostring(self._root, encoding="UTF-8", xml_declaration=True)
        return text


def _parse(text: bytes) -> ElementTree.Element:
    """Return the root of OME-XML; names in its namespace are without it."""
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text:
        raise WeftError("OME-XML with a document type is not read")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise WeftError(f"it is not XML: {error}") from None
    if root.tag != f"{{{NAMESPACE}}}OME":
        raise WeftError(f"expected OME of {NAMESPACE}, got {root.tag}")
    for element in root.iter():
        element.tag = element.tag.removeprefix(f"{{{NAMESPACE}}}")
    return root


def _describe(element: ElementTree.Element, number: int, image: ImageDescription) -> None:
    """Set what is known about an image; other attributes and elements stay."""
    names = _letters(image.metadata.axes)
    places = dict(zip(names, zip(image.metadata.axes, image.shape, image.metadata.levels[0].scale)))
    element.attrib.setdefault("ID", f"Image:{number}")
    if image.metadata.name is not None:
        element.attrib.setdefault("Name", _text(image.metadata.name))
    pixels = _child(element, "Pixels", after=_BEFORE_PIXELS)
    pixels.attrib.setdefault("ID", f"Pixels:{number}")
    order = [name for name in reversed(names) if name in "zct"]
    order += [name for name in "zct" if name not in order]
    pixels.attrib.setdefault("DimensionOrder", "XY" + "".join(order).upper())
    pixels.set("Type", PIXEL_TYPES[image.dtype])
    sizes = {name: max(1, places[name][1]) if name in places else 1 for name in "xyzct"}
    for name, size in sizes.items():
        pixels.set(f"Size{name.upper()}", str(size))
    for name in "xyz":
        if name in places:
            axis, _, scale = places[name]
            _set_quantity(pixels, f"PhysicalSize{name.upper()}", scale, axis)
    if "t" in places:
        _set_quantity(pixels, "TimeIncrement", places["t"][2], places["t"][0])
    _set_channels(pixels, number, sizes["c"], image.channels)
    _child(pixels, "MetadataOnly", after=("Channel",))
    _set_planes(pixels, image.planes)
    _set_stage(element, image.metadata)


_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML has no spelling for."""


def _text(name: str) -> str:
    """Return a name for XML, with U+FFFD for characters that only `zarr.json` can have."""
    return _FORBIDDEN.sub("\ufffd", name)


def _letters(axes: Sequence[Axis]) -> list[str]:
    """Return what OME-XML calls each axis: T, C, Z, Y and X, by their types and order."""
    space = [number for number, axis in enumerate(axes) if axis.type == "space"]
    letters = dict(zip(reversed(space), "xyz"))
    return [letters.get(n) or ("t" if axis.type == "time" else "c") for n, axis in enumerate(axes)]


_BEFORE_PIXELS = (
    *("AcquisitionDate", "ExperimenterRef", "Description", "ExperimentRef", "ExperimenterGroupRef"),
    *("InstrumentRef", "ObjectiveSettings", "ImagingEnvironment", "StageLabel"),
)
"""The elements of an image that come before its pixels, in their order."""


def _child(parent: ElementTree.Element, tag: str, after: Sequence[str]) -> ElementTree.Element:
    """Return a child, made where there is none, after those that must come before it."""
    child = parent.find(tag)
    if child is None:
        child = ElementTree.Element(tag)
        before = [place for place, one in enumerate(parent) if one.tag in after]
        parent.insert(before[-1] + 1 if before else 0, child)
    return child


def _set_quantity(element: ElementTree.Element, name: str, value: float, axis: Axis) -> None:
    """Set a number with its unit; nothing where there is one, or OME-XML has no such unit."""
    unit = _UNITS.get(axis.unit or "")
    if unit is not None and name not in element.attrib:
        element.set(name, repr(float(value)))
        element.set(f"{name}Unit", unit)


def _set_channels(
    pixels: ElementTree.Element, number: int, count: int, channels: Sequence[Channel]
) -> None:
    elements = pixels.findall("Channel")
    for place in range(len(elements), count):
        element = ElementTree.Element("Channel", ID=f"Channel:{number}:{place}")
        element.set("SamplesPerPixel", "1")
        pixels.insert(place, element)
    for element, channel in zip(pixels.findall("Channel"), channels):
        if channel.name is not None:
            element.attrib.setdefault("Name", _text(channel.name))
        if channel.color is not None:
            value = int(channel.color, 16) << 8 | 0xFF  # red, green, blue, alpha
            signed = value - (1 << 32) if value >> 31 else value
            element.attrib.setdefault("Color", str(signed))


def _set_planes(pixels: ElementTree.Element, planes: Iterable[Plane]) -> None:
    known = {tuple(one.get(f"The{axis}") for axis in "ZCT"): one for one in pixels.iter("Plane")}
    for plane in planes:
        place = tuple(map(str, plane[:3]))
        element = known.get(place)
        if element is None:
            element = ElementTree.SubElement(pixels, "Plane")
            for axis, index in zip("ZCT", place):
                element.set(f"The{axis}", index)
        for key, value in plane.known.items():
            name, unit = _PLANE_ATTRIBUTES[key]
            element.set(name, repr(float(value)))
            element.set(f"{name}Unit", unit)


def _set_stage(element: ElementTree.Element, metadata: Multiscale) -> None:
    """Set the position of the stage, where the image has a translation with units."""
    shifts: Mapping[str, tuple[Axis, float]] = {
        letter: (axis, shift)
        for letter, axis, shift in zip(
            _letters(metadata.axes), metadata.axes, metadata.levels[0].translation
        )
        if axis.type == "space" and axis.unit in _UNITS
    }
    if not any(shift for _, shift in shifts.values()):
        return
    label = _child(element, "StageLabel", after=_BEFORE_PIXELS)
    label.attrib.setdefault("Name", str(metadata.name or element.get("ID")))
    for letter, (axis, shift) in shifts.items():
        _set_quantity(label, letter.upper(), shift, axis)

"""Metadata read field by field; what is wrong is refused with its name and what was there.

OME-NGFF 0.5: what an image says of its axes and levels.

The coordinates of an element are its index times a scale, plus a translation. An element of a level
that was made of windows lies in the middle of its window, so that all levels show the same place.

OME-NGFF 0.5: what a plate says of its wells, and a well of its fields.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from numbers import Real
from typing import Any, ClassVar, NamedTuple, TypeVar

from weft.errors import WeftError
from weft.values import FrozenMap, as_tuple, freeze

VERSION = "0.5"
"""The version of OME-NGFF that is written and read."""

T = TypeVar("T")


def read_at(path: str, read: Callable[[Any], T], data: Any) -> T:
    """What is read at a place, which an error names.

    >>> read_at("axes[1]", lambda data: as_text(data, "name"), {})
    Traceback (most recent call last):
    weft.errors.WeftError: axes[1]: name: None is no text
    """
    try:
        return read(data)
    except WeftError as error:
        raise error.at(path) from None


def as_ome(data: Any, key: str) -> Mapping[str, Any]:
    """What a group's attributes say under `ome`, of the version that is read here."""
    said = as_object(data, "ome")
    if said.get("version") != VERSION:
        raise WeftError(f"ome: version {VERSION} is read, and not {said.get('version')!r}")
    if key not in said:
        raise WeftError(f"ome: there is no {key!r}, only {sorted(said)}")
    return said


def as_object(data: Any, what: str) -> Mapping[str, Any]:
    """A JSON object."""
    if not isinstance(data, Mapping):
        raise WeftError(f"{what}: {data!r} is no object")
    return data


def as_list(data: Any, what: str) -> list[Any]:
    """A JSON array."""
    if not isinstance(data, list | tuple):
        raise WeftError(f"{what}: {data!r} is no list")
    return list(data)


def as_text(said: Mapping[str, Any], key: str, *default: str | None) -> Any:
    """A string under a key; if there is a default, the key may be missing."""
    value = said.get(key)
    if value is None and default:
        return default[0]
    if not isinstance(value, str):
        raise WeftError(f"{key}: {value!r} is no text")
    return value


def as_numbers(data: Any, what: str) -> tuple[float, ...]:
    """Finite numbers."""
    numbers = as_list(data, what)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, Real) or not isfinite(number):
            raise WeftError(f"{what}: {number!r} is no finite number")
    return tuple(map(float, numbers))


def as_whole(said: Mapping[str, Any], key: str, least: int, *default: int | None) -> Any:
    """A whole number under a key; if there is a default, the key may be missing."""
    value = said.get(key)
    if value is None and default:
        return default[0]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise WeftError(f"{key}: {value!r} is no whole number from {least} on")
    return value


_PREFIXES = (
    *("yocto", "zepto", "atto", "femto", "pico", "nano", "micro", "milli", "centi", "deci", ""),
    *("hecto", "kilo", "mega", "giga", "tera", "peta", "exa", "zetta", "yotta"),
)
UNITS = {
    "space": frozenset(
        {f"{prefix}meter" for prefix in _PREFIXES}
        | {"angstrom", "foot", "inch", "mile", "parsec", "yard"}
    ),
    "time": frozenset({f"{prefix}second" for prefix in _PREFIXES} | {"minute", "hour", "day"}),
}
"""The units that an axis of space and of time should have."""

_ORDER = {"time": 0, "channel": 1, "space": 2}
_KINDS = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension of an image: its name, what it is, and its unit.

    Where the type is not said, t is time, c is a channel, and z, y and x are space.

    >>> Axis("t", unit="second")
    Axis(name='t', type='time', unit='second')
    """

    name: str
    type: str | None = None
    """space, time or channel; others are allowed, and stand where channel does."""
    unit: str | None = None

    def __post_init__(self) -> None:
        for what, value in (("name", self.name), ("type", self.type), ("unit", self.unit)):
            if not (isinstance(value, str) and value) and (value is not None or what == "name"):
                raise WeftError(f"{what}: {value!r} is no {what} of an axis")
        if self.type is None:
            freeze(self, type=_KINDS.get(self.name.lower()))
        known = UNITS.get(self.type or "")
        if known and self.unit is not None and self.unit not in known:
            warnings.warn(
                f"axis {self.name}: {self.unit!r} is no unit of {self.type} that OME-NGFF names",
                stacklevel=3,
            )

    @classmethod
    def of(cls, given: Axis | str) -> Axis:
        """An axis, or the one that a name stands for."""
        return given if isinstance(given, Axis) else cls(given)

    def to_json(self) -> dict[str, Any]:
        """As metadata has it."""
        said = {"name": self.name, "type": self.type, "unit": self.unit}
        return {key: value for key, value in said.items() if value is not None}

    @classmethod
    def from_json(cls, data: Any) -> Axis:
        """Read one axis."""
        said = as_object(data, "axis")
        return cls(as_text(said, "name"), as_text(said, "type", None), as_text(said, "unit", None))


def as_axes(given: Sequence[Axis | str]) -> tuple[Axis, ...]:
    """The axes of an image: time, then channel, then two or three of space.

    >>> [axis.type for axis in as_axes("tcyx")]
    ['time', 'channel', 'space', 'space']
    """
    axes = tuple(map(Axis.of, given))
    names = [axis.name for axis in axes]
    if not 2 <= len(axes) <= 5:
        raise WeftError(f"an image has 2 to 5 axes, and not {len(axes)}: {names}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise WeftError(f"two axes have the name {twice!r}")
    ranks = [_ORDER.get(axis.type or "", 1) for axis in axes]
    if ranks != sorted(ranks):
        kinds = [axis.type for axis in axes]
        raise WeftError(f"axes come in the order time, channel, space, and not {kinds}")
    for kind, rank, least, most in (("time", 0, 0, 1), ("channel", 1, 0, 1), ("space", 2, 2, 3)):
        if not least <= ranks.count(rank) <= most:
            wanted = f"{least} to {most}" if least else f"at most {most}"
            raise WeftError(f"{ranks.count(rank)} axes of {kind}, where {wanted} can be: {names}")
    return axes


@dataclass(frozen=True, slots=True)
class Level:
    """An array of an image: its path, and where its elements lie."""

    path: str
    scale: tuple[float, ...]
    """How far apart two elements are along each axis, in its unit."""
    translation: tuple[float, ...] = ()
    """Where the first element lies."""

    def __post_init__(self) -> None:
        parts = self.path.split("/") if isinstance(self.path, str) else [""]
        if any(not part.strip(".") for part in parts):
            raise WeftError(f"path: {self.path!r} is no path inside of an image")
        scale = as_numbers(self.scale, "scale")
        shift = as_numbers(self.translation or [0.0] * len(scale), "translation")
        if any(s <= 0 for s in scale):
            raise WeftError(f"scale: {list(scale)} must be greater than 0")
        if len(shift) != len(scale):
            raise WeftError(f"a scale of {len(scale)} numbers, and a translation of {len(shift)}")
        freeze(self, scale=scale, translation=shift)

    def to_json(self) -> dict[str, Any]:
        """As metadata has it; a translation of nothing is left out."""
        steps: list[dict[str, Any]] = [{"type": "scale", "scale": list(self.scale)}]
        if any(self.translation):
            steps.append({"type": "translation", "translation": list(self.translation)})
        return {"path": self.path, "coordinateTransformations": steps}

    @classmethod
    def from_json(cls, data: Any) -> Level:
        """Read one level."""
        said = as_object(data, "dataset")
        scale, shift = _read_steps(said.get("coordinateTransformations"))
        return cls(as_text(said, "path"), scale, shift)


def _read_steps(data: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """A scale, and the translation behind it."""
    steps = as_list(data, "coordinateTransformations")
    kinds = [step.get("type") if isinstance(step, dict) else None for step in steps]
    if kinds not in (["scale"], ["scale", "translation"]):
        raise WeftError(
            f"coordinateTransformations: a scale, then perhaps a translation, and not {kinds}"
        )
    scale = as_numbers(steps[0].get("scale"), "scale")
    if len(steps) == 1:
        return scale, (0.0,) * len(scale)
    shift = as_numbers(steps[1].get("translation"), "translation")
    if len(shift) != len(scale):
        raise WeftError(f"a scale of {len(scale)} numbers, and a translation of {len(shift)}")
    return scale, shift


@dataclass(frozen=True, slots=True)
class Multiscale:
    """An image: its axes, and its levels from the finest to the coarsest.

    >>> image = Multiscale.of("yx", (0.5, 0.5), (2, 2), 3)
    >>> [(level.scale, level.translation) for level in image.levels]
    [((0.5, 0.5), (0.0, 0.0)), ((1.0, 1.0), (0.25, 0.25)), ((2.0, 2.0), (0.75, 0.75))]
    """

    axes: tuple[Axis, ...]
    levels: tuple[Level, ...]
    name: str | None = None
    type: str | None = None
    """How a level was made of the one before."""
    metadata: FrozenMap[str, Any] = field(default_factory=lambda: FrozenMap([]))
    """More about how it was made."""

    key: ClassVar[str] = "multiscales"

    def __post_init__(self) -> None:
        axes = as_axes(self.axes)
        if not self.levels:
            raise WeftError("an image has no level")
        paths = [level.path for level in self.levels]
        if len(set(paths)) < len(paths):
            raise WeftError(f"two levels have one path: {paths}")
        for level in self.levels:
            if len(level.scale) != len(axes):
                raise WeftError(
                    f"level {level.path}: {len(level.scale)} numbers for {len(axes)} axes"
                )
        scales = [level.scale for level in self.levels]
        for path, fine, coarse in zip(paths[1:], scales, scales[1:]):
            if any(a > b for a, b, axis in zip(fine, coarse, axes) if axis.type == "space"):
                raise WeftError(f"level {path} is finer than the one before it: {list(coarse)}")
        about = ((k, tuple(v) if isinstance(v, list) else v) for k, v in self.metadata.items())
        freeze(self, axes=axes, metadata=FrozenMap(about))

    @classmethod
    def of(
        cls,
        axes: Sequence[Axis | str],
        scale: Sequence[float] | None,
        factors: Sequence[int],
        levels: int,
        method: str = "mean",
        *,
        translation: Sequence[float] | None = None,
        name: str | None = None,
    ) -> Multiscale:
        """The image whose levels are reduced by the same factors from one to the next.

        Windows of n elements have their middle (n - 1) / 2 elements behind their first one; there
        is what they were reduced to, but for the first element, which stays where it was.
        """
        found = as_axes(axes)
        base = as_numbers([1.0] * len(found) if scale is None else list(scale), "scale")
        shift = as_numbers(list(translation or [0.0] * len(found)), "translation")
        for what, given in (("scale", base), ("translation", shift), ("factors", factors)):
            if len(given) != len(found):
                raise WeftError(f"{what} has {len(given)} numbers for {len(found)} axes")
        made = []
        for number in range(levels):
            windows = [f**number for f in factors]
            middles = [0.0 if method == "first" else (n - 1) / 2 for n in windows]
            made.append(
                Level(
                    str(number),
                    tuple(s * n for s, n in zip(base, windows)),
                    tuple(t + s * m for t, s, m in zip(shift, base, middles)),
                )
            )
        about = FrozenMap([("method", f"weft.store: {method}"), ("factors", tuple(factors))])
        return cls(found, tuple(made), name, method, about)

    def to_json(self) -> dict[str, Any]:
        """As metadata has it, in a list of one image."""
        said: dict[str, Any] = {} if self.name is None else {"name": self.name}
        said["axes"] = [axis.to_json() for axis in self.axes]
        said["datasets"] = [level.to_json() for level in self.levels]
        if self.type is not None:
            said["type"] = self.type
        if self.metadata:
            about = self.metadata.items()
            said["metadata"] = {k: list(v) if isinstance(v, tuple) else v for k, v in about}
        return {"version": VERSION, self.key: [said]}

    @classmethod
    def from_json(cls, data: Any) -> Multiscale:
        """Read the first image that metadata describe."""
        images = as_list(as_ome(data, cls.key)[cls.key], cls.key)
        try:
            return cls._read(as_object(images[0], "image") if images else {})
        except WeftError as error:
            raise error.at(f"{cls.key}[0]") from None

    @classmethod
    def _read(cls, said: Mapping[str, Any]) -> Multiscale:
        axes = [
            read_at(f"axes[{n}]", Axis.from_json, axis)
            for n, axis in enumerate(as_list(said.get("axes"), "axes"))
        ]
        levels = [
            read_at(f"datasets[{n}]", Level.from_json, level)
            for n, level in enumerate(as_list(said.get("datasets"), "datasets"))
        ]
        if said.get("coordinateTransformations") is not None:
            levels = _moved(levels, said["coordinateTransformations"])
        about = as_object(said.get("metadata") or {}, "metadata")
        kind = as_text(said, "type", None)
        name = as_text(said, "name", None)
        return cls(tuple(axes), tuple(levels), name, kind, FrozenMap(about.items()))


def _moved(levels: Sequence[Level], data: Any) -> list[Level]:
    """Levels with what is said of all of them applied behind what is said of each."""
    scale, shift = _read_steps(data)
    made = []
    for level in levels:
        if len(level.scale) != len(scale):
            raise WeftError(
                f"coordinateTransformations: {len(scale)} numbers for {len(level.scale)} axes"
            )
        size = tuple(a * b for a, b in zip(level.scale, scale))
        start = tuple(t * s + u for t, s, u in zip(level.translation, scale, shift))
        made.append(Level(level.path, size, start))
    return made


_NAME = re.compile(r"[A-Za-z0-9]+")


def as_name(name: Any, what: str) -> str:
    """A name of letters and digits, which are all that rows, columns and fields may have."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise WeftError(f"{what}: {name!r} is no name of letters and digits")
    return name


def as_names(names: Sequence[str], what: str) -> tuple[str, ...]:
    """Names of which there is at least one, and no two that a file system could take for one.

    >>> as_names("AB", "rows")
    ('A', 'B')
    """
    found = tuple(as_name(name, what) for name in names)
    if not found:
        raise WeftError(f"{what}: there are none")
    lower = [name.lower() for name in found]
    for name in found:
        if lower.count(name.lower()) > 1:
            raise WeftError(f"{what}: {name!r} is there twice, for file systems at least")
    return found


@dataclass(frozen=True, slots=True)
class Acquisition:
    """One run of a microscope over a plate; times are seconds since 1970."""

    id: int
    name: str | None = None
    maximumfieldcount: int | None = None
    description: str | None = None
    starttime: int | None = None
    endtime: int | None = None

    def __post_init__(self) -> None:
        said = {key: getattr(self, key) for key in self.__slots__}
        as_whole(said, "id", 0)
        as_whole(said, "maximumfieldcount", 1, None)
        for key in ("starttime", "endtime"):
            as_whole(said, key, 0, None)
        for key in ("name", "description"):
            as_text(said, key, None)

    def to_json(self) -> dict[str, Any]:
        """As metadata has it."""
        said = {key: getattr(self, key) for key in self.__slots__}
        return {key: value for key, value in said.items() if value is not None}

    @classmethod
    def from_json(cls, data: Any) -> Acquisition:
        """Read one acquisition; fields that nobody knows are left out."""
        said = as_object(data, "acquisition")
        return cls(**{"id": None} | {key: said[key] for key in cls.__slots__ if key in said})


class Spot(NamedTuple):
    """Where a well is: its row and its column, by name."""

    row: str
    column: str


@dataclass(frozen=True, slots=True)
class Plate:
    """A plate: the names of its rows and columns, and the wells that have images.

    >>> Plate(("A", "B"), ("1", "2"), (Spot("B", "2"),)).to_json()["plate"]["wells"]
    [{'path': 'B/2', 'rowIndex': 1, 'columnIndex': 1}]
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    wells: tuple[Spot, ...] = ()
    acquisitions: tuple[Acquisition, ...] = ()
    name: str | None = None
    field_count: int | None = None
    """The most fields that a well has."""

    key: ClassVar[str] = "plate"

    def __post_init__(self) -> None:
        rows, columns = as_names(self.rows, "rows"), as_names(self.columns, "columns")
        wells = tuple(Spot(*spot) for spot in self.wells)
        for spot in wells:
            for what, name, names in (("row", spot.row, rows), ("column", spot.column, columns)):
                if name not in names:
                    raise WeftError(f"well {spot.row}/{spot.column}: there is no {what} {name!r}")
            if wells.count(spot) > 1:
                raise WeftError(f"well {spot.row}/{spot.column} is there twice")
        runs = as_tuple(self.acquisitions, "acquisitions", Acquisition)
        numbers = [run.id for run in runs]
        if len(set(numbers)) < len(numbers):
            raise WeftError(f"acquisitions: two have one id: {numbers}")
        as_whole({"field_count": self.field_count}, "field_count", 1, None)
        as_text({"name": self.name}, "name", None)
        freeze(self, rows=rows, columns=columns, wells=wells, acquisitions=runs)

    def to_json(self) -> dict[str, Any]:
        """As metadata has it; there must be a well."""
        if not self.wells:
            raise WeftError("a plate without wells cannot be written")
        said: dict[str, Any] = {} if self.name is None else {"name": self.name}
        if self.acquisitions:
            said["acquisitions"] = [run.to_json() for run in self.acquisitions]
        said["rows"] = [{"name": name} for name in self.rows]
        said["columns"] = [{"name": name} for name in self.columns]
        said["wells"] = [
            {
                "path": f"{row}/{column}",
                "rowIndex": self.rows.index(row),
                "columnIndex": self.columns.index(column),
            }
            for row, column in self.wells
        ]
        if self.field_count is not None:
            said["field_count"] = self.field_count
        return {"version": VERSION, self.key: said | {"version": VERSION}}

    @classmethod
    def from_json(cls, data: Any) -> Plate:
        """Read what metadata say of a plate."""
        said = as_object(as_ome(data, cls.key)[cls.key], cls.key)
        try:
            return cls._read(said)
        except WeftError as error:
            raise error.at(cls.key) from None

    @classmethod
    def _read(cls, said: Mapping[str, Any]) -> Plate:
        rows, columns = (
            [as_text(as_object(one, key), "name") for one in as_list(said.get(key), key)]
            for key in ("rows", "columns")
        )
        wells = [
            read_at(f"wells[{n}]", lambda well: _spot(well, rows, columns), well)
            for n, well in enumerate(as_list(said.get("wells"), "wells"))
        ]
        runs = [
            read_at(f"acquisitions[{n}]", Acquisition.from_json, run)
            for n, run in enumerate(as_list(said.get("acquisitions") or [], "acquisitions"))
        ]
        name, count = as_text(said, "name", None), as_whole(said, "field_count", 1, None)
        return cls(tuple(rows), tuple(columns), tuple(wells), tuple(runs), name, count)


def _spot(data: Any, rows: Sequence[str], columns: Sequence[str]) -> Spot:
    """A well, whose path and numbers must say the same."""
    said = as_object(data, "well")
    path = as_text(said, "path")
    row, column = as_whole(said, "rowIndex", 0), as_whole(said, "columnIndex", 0)
    if row >= len(rows) or column >= len(columns):
        raise WeftError(f"{path}: row {row} of {len(rows)}, column {column} of {len(columns)}")
    if path != f"{rows[row]}/{columns[column]}":
        raise WeftError(f"{path!r} is not where it is said to be, at {rows[row]}/{columns[column]}")
    return Spot(rows[row], columns[column])


class Field(NamedTuple):
    """An image of a well, and the acquisition that it belongs to."""

    path: str
    acquisition: int | None = None


@dataclass(frozen=True, slots=True)
class Well:
    """A well: its images, which are its fields of view.

    >>> Well((Field("0"),)).to_json()
    {'version': '0.5', 'well': {'images': [{'path': '0'}], 'version': '0.5'}}
    """

    fields: tuple[Field, ...]

    key: ClassVar[str] = "well"

    def __post_init__(self) -> None:
        fields = tuple(Field(*given) for given in self.fields)
        as_names([found.path for found in fields], "images")
        for found in fields:
            as_whole({"acquisition": found.acquisition}, "acquisition", 0, None)
        freeze(self, fields=fields)

    def to_json(self) -> dict[str, Any]:
        """As metadata has it."""
        images = [
            {"path": path} if number is None else {"path": path, "acquisition": number}
            for path, number in self.fields
        ]
        return {"version": VERSION, self.key: {"images": images, "version": VERSION}}

    @classmethod
    def from_json(cls, data: Any) -> Well:
        """Read what metadata say of a well."""
        said = as_object(as_ome(data, cls.key)[cls.key], cls.key)
        try:
            images = [as_object(one, "image") for one in as_list(said.get("images"), "images")]
            return cls(
                tuple(
                    Field(as_text(one, "path"), as_whole(one, "acquisition", 0, None))
                    for one in images
                )
            )
        except WeftError as error:
            raise error.at(cls.key) from None

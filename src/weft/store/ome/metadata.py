"""The metadata of OME-NGFF: images with axes and levels, plates with wells, wells with fields.

The position of an element is its index times a scale, plus a translation. An element of a coarser
level lies in the middle of its window, so that all levels show the same place.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from numbers import Real
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

from weft.errors import WeftError
from weft.values import FrozenMap, as_tuple, freeze

VERSION = "0.5"
"""The version of OME-NGFF that is written."""

VERSIONS = ("0.4", VERSION)
"""The versions that are read: 0.4 has the same metadata in another place."""

T = TypeVar("T")


def read_at(path: str, read: Callable[[Any], T], data: Any) -> T:
    """Return what is read at a path, which errors name.

    >>> read_at("axes[1]", lambda data: as_text(data, "name"), {})
    Traceback (most recent call last):
    weft.errors.WeftError: axes[1]: name: expected text, got None
    """
    try:
        return read(data)
    except WeftError as error:
        raise error.at(path) from None


def read_list(fields: Mapping[str, Any], key: str, read: Callable[[Any], T]) -> list[T]:
    """Return the entries of a list under a key, each as it is read."""
    given = as_list(fields.get(key), key)
    return [read_at(f"{key}[{n}]", read, entry) for n, entry in enumerate(given)]


def as_ome(data: Any, key: str) -> Mapping[str, Any]:
    """Return the metadata of a group, of a version that is supported."""
    fields = as_object(data, "ome")
    version = fields.get("version")
    if version not in VERSIONS:
        raise WeftError(
            f"ome: versions {' and '.join(VERSIONS)} are supported, got {version!r}",
            hint="store.open_group opens it as a group of arrays",
        )
    if key not in fields:
        raise WeftError(f"ome: there is no {key!r}, only {sorted(fields)}")
    return fields


def as_object(data: Any, what: str) -> Mapping[str, Any]:
    """Return a JSON object, or refuse what is not one."""
    if not isinstance(data, Mapping):
        raise WeftError(f"{what}: expected an object, got {data!r}")
    return data


def as_list(data: Any, what: str) -> list[Any]:
    """Return a JSON array, or refuse what is not one."""
    if not isinstance(data, list | tuple):
        raise WeftError(f"{what}: expected a list, got {data!r}")
    return list(data)


def as_text(fields: Mapping[str, Any], key: str, *default: str | None) -> Any:
    """Return the text under a key; with a default, the key may be missing."""
    value = fields.get(key)
    if value is None and default:
        return default[0]
    if not isinstance(value, str):
        raise WeftError(f"{key}: expected text, got {value!r}")
    return value


def as_numbers(data: Any, what: str) -> tuple[float, ...]:
    """Return finite numbers, or refuse others."""
    numbers = as_list(data, what)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, Real) or not isfinite(number):
            raise WeftError(f"{what}: expected finite numbers, got {number!r}")
    return tuple(map(float, numbers))


def as_integer(fields: Mapping[str, Any], key: str, least: int, *default: int | None) -> Any:
    """Return the integer under a key; with a default, the key may be missing."""
    value = fields.get(key)
    if value is None and default:
        return default[0]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise WeftError(f"{key}: expected an integer from {least} on, got {value!r}")
    return value


PREFIXES = (
    *("yocto", "zepto", "atto", "femto", "pico", "nano", "micro", "milli", "centi", "deci", ""),
    *("hecto", "kilo", "mega", "giga", "tera", "peta", "exa", "zetta", "yotta"),
)
UNITS = {
    "space": frozenset(
        {f"{prefix}meter" for prefix in PREFIXES}
        | {"angstrom", "foot", "inch", "mile", "parsec", "yard"}
    ),
    "time": frozenset({f"{prefix}second" for prefix in PREFIXES} | {"minute", "hour", "day"}),
}
"""The units of axes of space and of time in OME-NGFF."""

_ORDER = {"time": 0, "channel": 1, "space": 2}
_KINDS = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}


@dataclass(frozen=True, slots=True)
class Axis:
    """A dimension of an image: its name, type and unit.

    Unless a type is given, t is time, c is a channel, and z, y and x are space.

    >>> Axis("t", unit="second")
    Axis(name='t', type='time', unit='second')
    """

    name: str
    type: str | None = None
    """space, time or channel; others are allowed in the place of channel."""
    unit: str | None = None

    def __post_init__(self) -> None:
        for what, value in (("name", self.name), ("type", self.type), ("unit", self.unit)):
            if not (isinstance(value, str) and value) and (value is not None or what == "name"):
                raise WeftError(f"{what}: {value!r} is not a {what} of an axis")
        if self.type is None:
            freeze(self, type=_KINDS.get(self.name.lower()))
        known = UNITS.get(self.type or "")
        if known and self.unit is not None and self.unit not in known:
            warnings.warn(
                f"axis {self.name}: {self.unit!r} is not a unit of {self.type} in OME-NGFF",
                stacklevel=3,
            )

    @classmethod
    def of(cls, given: Axis | str) -> Axis:
        """Return an axis, or the one that a name stands for."""
        return given if isinstance(given, Axis) else cls(given)

    def to_json(self) -> dict[str, Any]:
        """Return it as in `zarr.json`."""
        fields = {"name": self.name, "type": self.type, "unit": self.unit}
        return {key: value for key, value in fields.items() if value is not None}

    @classmethod
    def from_json(cls, data: Any) -> Axis:
        """Read an axis."""
        fields = as_object(data, "axis")
        return cls(
            as_text(fields, "name"), as_text(fields, "type", None), as_text(fields, "unit", None)
        )


def as_axes(given: Sequence[Axis | str]) -> tuple[Axis, ...]:
    """Return the axes of an image: time, then channel, then two or three of space.

    >>> [axis.type for axis in as_axes("tcyx")]
    ['time', 'channel', 'space', 'space']
    """
    axes = tuple(map(Axis.of, given))
    names = [axis.name for axis in axes]
    if not 2 <= len(axes) <= 5:
        raise WeftError(f"an image has 2 to 5 axes, got {len(axes)}: {names}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise WeftError(f"two axes have the name {twice!r}")
    ranks = [_ORDER.get(axis.type or "", 1) for axis in axes]
    if ranks != sorted(ranks):
        kinds = [axis.type for axis in axes]
        raise WeftError(f"axes come in the order time, channel, space, got {kinds}")
    for kind, rank, least, most in (("time", 0, 0, 1), ("channel", 1, 0, 1), ("space", 2, 2, 3)):
        if not least <= ranks.count(rank) <= most:
            wanted = f"{least} to {most}" if least else f"at most {most}"
            raise WeftError(f"{ranks.count(rank)} axes of {kind}, where {wanted} can be: {names}")
    return axes


PerAxis: TypeAlias = Sequence[float] | Mapping[str, float]
"""A number for each axis of an image, or for some of them by name."""


def per_axis(
    given: PerAxis | None, axes: Sequence[Axis], default: float, what: str
) -> tuple[float, ...]:
    """Return a number for each axis; those that are not named have the default.

    >>> per_axis({"x": 0.5}, as_axes("tyx"), 1.0, "scale")
    (1.0, 1.0, 0.5)
    """
    if isinstance(given, Mapping):
        names = [axis.name for axis in axes]
        for name in given:
            if name not in names:
                raise WeftError(f"{what}: there is no axis {name!r}, only {names}")
        return as_numbers([given.get(name, default) for name in names], what)
    return as_numbers([default] * len(axes) if given is None else list(given), what)


@dataclass(frozen=True, slots=True)
class Dataset:
    """A level of an image: the path of its array, and the position of its elements."""

    path: str
    scale: tuple[float, ...]
    """The distance between two elements along each axis, in its unit."""
    translation: tuple[float, ...] = ()
    """The position of the first element."""

    def __post_init__(self) -> None:
        parts = self.path.split("/") if isinstance(self.path, str) else [""]
        if any(not part.strip(".") for part in parts):
            raise WeftError(f"path: {self.path!r} is not a path inside of an image")
        scale, shift = _as_steps(self.scale, self.translation)
        if any(s <= 0 for s in scale):
            raise WeftError(f"scale: {list(scale)} must be greater than 0")
        freeze(self, scale=scale, translation=shift)

    def to_json(self) -> dict[str, Any]:
        """Return it as in `zarr.json`; a translation of 0 is left out."""
        steps: list[dict[str, Any]] = [{"type": "scale", "scale": list(self.scale)}]
        if any(self.translation):
            steps.append({"type": "translation", "translation": list(self.translation)})
        return {"path": self.path, "coordinateTransformations": steps}

    @classmethod
    def from_json(cls, data: Any) -> Dataset:
        """Read a level."""
        fields = as_object(data, "dataset")
        scale, shift = _read_steps(fields.get("coordinateTransformations"))
        return cls(as_text(fields, "path"), scale, shift)


def _read_steps(data: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return a scale, and the translation after it."""
    steps = as_list(data, "coordinateTransformations")
    kinds = [step.get("type") if isinstance(step, dict) else None for step in steps]
    if kinds not in (["scale"], ["scale", "translation"]):
        raise WeftError(
            f"coordinateTransformations: expected a scale, then perhaps a translation, got {kinds}"
        )
    return _as_steps(steps[0].get("scale"), steps[1].get("translation") if steps[1:] else ())


def _as_steps(scale: Any, translation: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return a scale, and a translation of as many numbers; 0 unless given."""
    sizes = as_numbers(scale, "scale")
    shift = as_numbers(translation, "translation") or (0.0,) * len(sizes)
    if len(shift) != len(sizes):
        raise WeftError(f"a scale of {len(sizes)} numbers, and a translation of {len(shift)}")
    return sizes, shift


@dataclass(frozen=True, slots=True)
class Multiscale:
    """An image: its axes, and its levels from the finest to the coarsest.

    >>> image = Multiscale.of("yx", (0.5, 0.5), (2, 2), 3)
    >>> [(level.scale, level.translation) for level in image.levels]
    [((0.5, 0.5), (0.0, 0.0)), ((1.0, 1.0), (0.25, 0.25)), ((2.0, 2.0), (0.75, 0.75))]
    """

    axes: tuple[Axis, ...]
    levels: tuple[Dataset, ...]
    name: str | None = None
    type: str | None = None
    """How a level was reduced from the one before."""
    metadata: FrozenMap[str, Any] = field(default_factory=lambda: FrozenMap([]))
    """Details of the reduction."""

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
        scale: PerAxis | None,
        factors: Sequence[int],
        levels: int,
        method: str = "mean",
        *,
        translation: PerAxis | None = None,
        name: str | None = None,
    ) -> Multiscale:
        """Return an image whose levels are reduced by the same factors from one to the next.

        The middle of a window of n elements is (n - 1) / 2 elements after its first one. The
        reduced element lies there, except with the method "first", which keeps its position.
        """
        checked = as_axes(axes)
        base = per_axis(scale, checked, 1.0, "scale")
        shift = per_axis(translation, checked, 0.0, "translation")
        for what, given in (("scale", base), ("translation", shift), ("factors", factors)):
            if len(given) != len(checked):
                raise WeftError(f"{what} has {len(given)} numbers for {len(checked)} axes")
        datasets = []
        for number in range(levels):
            windows = [f**number for f in factors]
            middles = [0.0 if method == "first" else (n - 1) / 2 for n in windows]
            datasets.append(
                Dataset(
                    str(number),
                    tuple(s * n for s, n in zip(base, windows)),
                    tuple(t + s * m for t, s, m in zip(shift, base, middles)),
                )
            )
        about = FrozenMap([("method", f"weft.store: {method}"), ("factors", tuple(factors))])
        return cls(checked, tuple(datasets), name, method, about)

    def to_json(self) -> dict[str, Any]:
        """Return it as in `zarr.json`, in a list of one image."""
        fields: dict[str, Any] = {} if self.name is None else {"name": self.name}
        fields["axes"] = [axis.to_json() for axis in self.axes]
        fields["datasets"] = [level.to_json() for level in self.levels]
        if self.type is not None:
            fields["type"] = self.type
        if self.metadata:
            about = self.metadata.items()
            fields["metadata"] = {k: list(v) if isinstance(v, tuple) else v for k, v in about}
        return {"version": VERSION, self.key: [fields]}

    @classmethod
    def from_json(cls, data: Any) -> Multiscale:
        """Read the first image of the metadata."""
        images = as_list(as_ome(data, cls.key)[cls.key], cls.key)
        first = as_object(images[0], "image") if images else {}
        return read_at(f"{cls.key}[0]", cls._read, first)

    @classmethod
    def _read(cls, fields: Mapping[str, Any]) -> Multiscale:
        axes = read_list(fields, "axes", Axis.from_json)
        levels = read_list(fields, "datasets", Dataset.from_json)
        if fields.get("coordinateTransformations") is not None:
            levels = _moved(levels, fields["coordinateTransformations"])
        about = as_object(fields.get("metadata") or {}, "metadata")
        kind = as_text(fields, "type", None)
        name = as_text(fields, "name", None)
        return cls(tuple(axes), tuple(levels), name, kind, FrozenMap(about.items()))


def _moved(levels: Sequence[Dataset], data: Any) -> list[Dataset]:
    """Return levels with the common transformation applied after their own."""
    scale, shift = _read_steps(data)
    moved = []
    for level in levels:
        if len(level.scale) != len(scale):
            raise WeftError(
                f"coordinateTransformations: {len(scale)} numbers for {len(level.scale)} axes"
            )
        size = tuple(a * b for a, b in zip(level.scale, scale))
        start = tuple(t * s + u for t, s, u in zip(level.translation, scale, shift))
        moved.append(Dataset(level.path, size, start))
    return moved


_NAME = re.compile(r"[A-Za-z0-9]+")


def as_name(name: Any, what: str) -> str:
    """Return a name of letters and digits, as rows, columns and fields must have."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise WeftError(f"{what}: {name!r} is not a name of letters and digits")
    return name


def as_names(names: Sequence[str], what: str) -> tuple[str, ...]:
    """Return names: at least one, and no two that a file system could confuse.

    >>> as_names("AB", "rows")
    ('A', 'B')
    """
    checked = tuple(as_name(name, what) for name in names)
    if not checked:
        raise WeftError(f"{what}: there are none")
    lower = [name.lower() for name in checked]
    for name in checked:
        if lower.count(name.lower()) > 1:
            raise WeftError(
                f"{what}: {name!r} occurs twice, at least for file systems that ignore case"
            )
    return checked


@dataclass(frozen=True, slots=True)
class Acquisition:
    """One run of a microscope over a plate; times are in seconds since 1970."""

    id: int
    name: str | None = None
    maximumfieldcount: int | None = None
    description: str | None = None
    starttime: int | None = None
    endtime: int | None = None

    def __post_init__(self) -> None:
        fields = {key: getattr(self, key) for key in self.__slots__}
        as_integer(fields, "id", 0)
        as_integer(fields, "maximumfieldcount", 1, None)
        for key in ("starttime", "endtime"):
            as_integer(fields, key, 0, None)
        for key in ("name", "description"):
            as_text(fields, key, None)

    def to_json(self) -> dict[str, Any]:
        """Return it as in `zarr.json`."""
        fields = {key: getattr(self, key) for key in self.__slots__}
        return {key: value for key, value in fields.items() if value is not None}

    @classmethod
    def from_json(cls, data: Any) -> Acquisition:
        """Read an acquisition; unknown fields are left out."""
        fields = as_object(data, "acquisition")
        return cls(**{"id": None} | {key: fields[key] for key in cls.__slots__ if key in fields})


class WellPosition(NamedTuple):
    """The row and the column of a well, by name."""

    row: str
    column: str


@dataclass(frozen=True, slots=True)
class Plate:
    """A plate: the names of its rows and columns, and the wells that have images.

    >>> Plate(("A", "B"), ("1", "2"), (WellPosition("B", "2"),)).to_json()["plate"]["wells"]
    [{'path': 'B/2', 'rowIndex': 1, 'columnIndex': 1}]
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    wells: tuple[WellPosition, ...] = ()
    acquisitions: tuple[Acquisition, ...] = ()
    name: str | None = None
    field_count: int | None = None
    """The most fields of a well."""

    key: ClassVar[str] = "plate"

    def __post_init__(self) -> None:
        rows, columns = as_names(self.rows, "rows"), as_names(self.columns, "columns")
        wells = tuple(WellPosition(*position) for position in self.wells)
        for position in wells:
            for what, name, names in (
                ("row", position.row, rows),
                ("column", position.column, columns),
            ):
                if name not in names:
                    raise WeftError(
                        f"well {position.row}/{position.column}: there is no {what} {name!r}"
                    )
            if wells.count(position) > 1:
                raise WeftError(f"well {position.row}/{position.column} is listed twice")
        runs = as_tuple(self.acquisitions, "acquisitions", Acquisition)
        numbers = [run.id for run in runs]
        if len(set(numbers)) < len(numbers):
            raise WeftError(f"acquisitions: two have one id: {numbers}")
        as_integer({"field_count": self.field_count}, "field_count", 1, None)
        as_text({"name": self.name}, "name", None)
        freeze(self, rows=rows, columns=columns, wells=wells, acquisitions=runs)

    def to_json(self) -> dict[str, Any]:
        """Return it as in `zarr.json`, where OME-NGFF requires a well."""
        fields: dict[str, Any] = {} if self.name is None else {"name": self.name}
        if self.acquisitions:
            fields["acquisitions"] = [run.to_json() for run in self.acquisitions]
        fields["rows"] = [{"name": name} for name in self.rows]
        fields["columns"] = [{"name": name} for name in self.columns]
        fields["wells"] = [
            {
                "path": f"{row}/{column}",
                "rowIndex": self.rows.index(row),
                "columnIndex": self.columns.index(column),
            }
            for row, column in self.wells
        ]
        if self.field_count is not None:
            fields["field_count"] = self.field_count
        return {"version": VERSION, self.key: fields | {"version": VERSION}}

    @classmethod
    def from_json(cls, data: Any) -> Plate:
        """Read a plate from metadata."""
        return read_at(cls.key, cls._read, as_object(as_ome(data, cls.key)[cls.key], cls.key))

    @classmethod
    def _read(cls, fields: Mapping[str, Any]) -> Plate:
        rows, columns = (
            [as_text(as_object(one, key), "name") for one in as_list(fields.get(key), key)]
            for key in ("rows", "columns")
        )
        wells = read_list(fields, "wells", lambda well: _read_well(well, rows, columns))
        runs = read_list({"acquisitions": [], **fields}, "acquisitions", Acquisition.from_json)
        name, count = as_text(fields, "name", None), as_integer(fields, "field_count", 1, None)
        return cls(tuple(rows), tuple(columns), tuple(wells), tuple(runs), name, count)


def _read_well(data: Any, rows: Sequence[str], columns: Sequence[str]) -> WellPosition:
    """Read a well, whose path and indices must agree."""
    fields = as_object(data, "well")
    path = as_text(fields, "path")
    row, column = as_integer(fields, "rowIndex", 0), as_integer(fields, "columnIndex", 0)
    if row >= len(rows) or column >= len(columns):
        raise WeftError(f"{path}: row {row} of {len(rows)}, column {column} of {len(columns)}")
    if path != f"{rows[row]}/{columns[column]}":
        raise WeftError(f"{path!r} does not match its indices: {rows[row]}/{columns[column]}")
    return WellPosition(rows[row], columns[column])


class FieldOfView(NamedTuple):
    """An image of a well, and its acquisition."""

    path: str
    acquisition: int | None = None


@dataclass(frozen=True, slots=True)
class Well:
    """A well: its images, one for each field of view.

    >>> Well((FieldOfView("0"),)).to_json()
    {'version': '0.5', 'well': {'images': [{'path': '0'}], 'version': '0.5'}}
    """

    fields: tuple[FieldOfView, ...]

    key: ClassVar[str] = "well"

    def __post_init__(self) -> None:
        fields = tuple(FieldOfView(*given) for given in self.fields)
        as_names([one.path for one in fields], "images")
        for one in fields:
            as_integer({"acquisition": one.acquisition}, "acquisition", 0, None)
        freeze(self, fields=fields)

    def to_json(self) -> dict[str, Any]:
        """Return it as in `zarr.json`."""
        images = [
            {"path": path} if number is None else {"path": path, "acquisition": number}
            for path, number in self.fields
        ]
        return {"version": VERSION, self.key: {"images": images, "version": VERSION}}

    @classmethod
    def from_json(cls, data: Any) -> Well:
        """Read a well from metadata."""
        return read_at(cls.key, cls._read, as_object(as_ome(data, cls.key)[cls.key], cls.key))

    @classmethod
    def _read(cls, fields: Mapping[str, Any]) -> Well:
        images = [as_object(one, "image") for one in as_list(fields.get("images"), "images")]
        return cls(
            tuple(
                FieldOfView(as_text(one, "path"), as_integer(one, "acquisition", 0, None))
                for one in images
            )
        )

"""OME-NGFF 0.5: what a plate says of its wells, and a well of its fields."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from weft.errors import WeftError
from weft.store.ome.fields import VERSION, as_list, as_object, as_ome, as_text, as_whole, read_at
from weft.values import as_tuple, freeze

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

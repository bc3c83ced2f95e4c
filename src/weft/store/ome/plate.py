"""Plates in OME-NGFF 0.5: wells of images, which grow while they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Literal, cast, overload

from weft.errors import WeftError
from weft.store.attributes import change_attributes
from weft.store.create import locked
from weft.store.hierarchy import (
    member_of,
    not_pending,
    ome_of,
    read_group,
    read_ome,
    sink_of,
    write_group,
)
from weft.store.ome.image import Image, ImageWriter, merged, open_image
from weft.store.ome.image_group import ImageGroupWriter, new_group
from weft.store.ome.metadata import Acquisition, FieldOfView, Plate, Well, WellPosition, as_name
from weft.store.sink import Lock, Sink, Url
from weft.store.target import recover
from weft.store.view import HoldsArrays
from weft.values import FrozenMap, counted


def create_plate(
    url: Url | Sink,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    name: str | None = None,
    acquisitions: Sequence[Acquisition] = (),
    field_count: int | None = None,
    attributes: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    fsync: bool = False,
    options: Mapping[str, Any] | None = None,
    **image: Any,
) -> PlateWriter:
    """Create a plate; `image` are arguments of `create_image` that all fields share.

    A well is listed as soon as it has an image: metadata list what exists, at any moment. A plate
    without wells is not one of OME-NGFF: until the first field, its metadata wait in "weft".
    `attributes` are those of the plate, as `create_image` takes them.

    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     image = {"shape": (4, 4), "dtype": "uint8", "chunks": (4, 4), "axes": "yx"}
    ...     with create_plate(f"{folder}/p.zarr", "AB", "123", **image) as plate:
    ...         plate.field("B", "2", 0).append(np.ones((4, 4), "uint8"))
    ...     plate = open_plate(f"{folder}/p.zarr")
    ...     print(plate.plate.wells, plate.image("B", "2", 0).levels[0].shape)
    (WellPosition(row='B', column='2'),) (4, 4)
    """
    sink = sink_of(url, options=options, fsync=fsync)
    label = PurePath(sink.url).name if name is None else name
    plate = Plate(tuple(rows), tuple(columns), (), tuple(acquisitions), label, field_count)
    document = merged({"ome": plate.to_json()}, attributes, "attributes")
    Plate.from_json(document["ome"])
    with new_group(sink, document, overwrite=overwrite) as lock:
        return PlateWriter(sink, plate, {"overwrite": overwrite} | image, lock, field_count)


class PlateWriter(ImageGroupWriter):
    """Creates the images of a plate; used in a `with` block. Any thread may create fields."""

    def __init__(
        self,
        sink: Sink,
        plate: Plate,
        image: Mapping[str, Any],
        lock: Lock,
        max_fields: int | None = None,
    ) -> None:
        super().__init__(sink, image, lock)
        self.plate, self._max_fields = plate, max_fields
        self._wells = {
            at: Well.from_json(read_ome(sink.below(at.row).below(at.column)).ome)
            for at in plate.wells
        }
        self.watch()

    @property
    def images(self) -> dict[tuple[str, str, str], ImageWriter]:
        """The images that are open, by row, column and field."""
        opened = self._open_writers()
        return {cast(Any, tuple(path.split("/"))): one for path, one in opened.items()}

    def field(
        self,
        row: str,
        column: str,
        field: str | int,
        *,
        acquisition: int | None = None,
        **image: Any,
    ) -> ImageWriter:
        """Create an image of a well; arguments that are not given are those of `create_plate`."""
        with self._lock:
            self._check_open()
            position, name = WellPosition(str(row), str(column)), as_name(str(field), "field")
            well = self._checked(position, name, acquisition)
            path = "/".join((*position, name))
            writer = self._create(path, {"name": path} | image)
            try:
                self._list(position, well)
            except BaseException:
                writer.close()
                raise
            self._writers[path] = writer
            return writer

    def __getitem__(self, field: tuple[str, str, str | int]) -> ImageWriter:
        """Return the writer of a row, column and field; one that was there before is continued."""
        row, column, name = map(str, field)
        with self._lock:
            well = self._wells.get(WellPosition(row, column))
            if well is None or name not in [one.path for one in well.fields]:
                raise WeftError(f"{self.url} has no field {row}/{column}/{name}")
            return self._continue(f"{row}/{column}/{name}")

    def add_acquisition(self, acquisition: Acquisition) -> None:
        """Add an acquisition, to which fields can then belong."""
        with self._lock:
            self._check_open()
            self._update(replace(self.plate, acquisitions=(*self.plate.acquisitions, acquisition)))

    def _checked(self, position: WellPosition, path: str, acquisition: int | None) -> Well:
        """Return the well with one more field."""
        replace(self.plate, wells=(position,))  # refuses a row or a column that does not exist
        known = [run.id for run in self.plate.acquisitions]
        where = f"field {position.row}/{position.column}/{path}"
        if acquisition is None and len(known) > 1:
            raise WeftError(f"{where} needs an acquisition, one of {known}")
        if acquisition is not None and acquisition not in known:
            raise WeftError(f"{where}: there is no acquisition {acquisition}, only {known}")
        before = self._wells[position].fields if position in self._wells else ()
        if path in [one.path for one in before]:
            raise WeftError(
                f"{where} exists already", hint="plate[row, column, field] continues a field"
            )
        if self._max_fields is not None and len(before) == self._max_fields:
            raise WeftError(f"{where}: the well has {len(before)} fields, its field_count")
        return Well((*before, FieldOfView(path, acquisition)))

    def _list(self, position: WellPosition, well: Well) -> None:
        """List a field in the metadata, from the inside to the outside."""
        row = self._sink.below(position.row)
        above = row.below(position.column)
        if position in self._wells:
            added = well.to_json()["well"]["images"][-1]
            change_attributes(above, lambda found: found["ome"]["well"]["images"].append(added))
        else:
            write_group(above, {"ome": well.to_json()})
        if position.row not in [known.row for known in self._wells]:
            write_group(row, {})
        count = max(len(well.fields), self.plate.field_count or 0)
        wells = self.plate.wells if position in self._wells else (*self.plate.wells, position)
        self._update(replace(self.plate, wells=wells, field_count=count))
        self._wells[position] = well

    def _update(self, plate: Plate) -> None:
        """Write what changed in the metadata of the plate; everything else stays."""
        if plate == self.plate:
            return
        before, after = (one.to_json()["plate"] for one in (self.plate, plate))

        def change(attributes: dict[str, Any]) -> None:
            if plate.wells:
                not_pending(attributes)
            fields = ome_of(attributes)["plate"]
            for key in ("wells", "acquisitions"):
                known = len(before.get(key, ()))
                if len(after.get(key, ())) > known:
                    fields[key] = [*fields.get(key, ()), *after[key][known:]]
            if before.get("field_count") != after.get("field_count"):
                fields["field_count"] = after["field_count"]

        change_attributes(self._sink, change)
        self.plate = plate


_NOTHING: FrozenMap[str, Any] = FrozenMap(())


@dataclass(frozen=True, slots=True, repr=False)
class StoredPlate(HoldsArrays):
    """A stored plate: its metadata, and its images."""

    _ARRAYS = "plate.image(row, column, field).levels[0]"
    sink: Sink
    plate: Plate
    attrs: Mapping[str, Any] = _NOTHING
    """All attributes of its group, as they were when it was opened."""

    @property
    def url(self) -> str:
        """Where the plate is."""
        return self.sink.url

    def __repr__(self) -> str:
        rows, columns = len(self.plate.rows), len(self.plate.columns)
        wells = counted(len(self.plate.wells), "well")
        return f"<StoredPlate {rows} x {columns}, {wells} with images, at {self.url}>"

    def well(self, row: str, column: str) -> Well:
        """Return the metadata of a well."""
        if WellPosition(row, column) not in self.plate.wells:
            raise WeftError(f"{self.url} has no well {row}/{column}")
        return Well.from_json(read_ome(self.sink.below(row).below(column)).ome)

    def image(self, row: str, column: str, field: str | int) -> Image:
        """Open a field of a well."""
        paths = [one.path for one in self.well(row, column).fields]
        if str(field) not in paths:
            raise WeftError(f"well {row}/{column} has no field {field}, only {paths}")
        return open_image(member_of(self.sink, f"{row}/{column}/{field}"))


@overload
def open_plate(
    url: Url | Sink, mode: Literal["r"] = "r", *, options: Mapping[str, Any] | None = None
) -> StoredPlate: ...


@overload
def open_plate(
    url: Url | Sink,
    mode: Literal["a"],
    *,
    fsync: bool = False,
    options: Mapping[str, Any] | None = None,
    **image: Any,
) -> PlateWriter: ...


def open_plate(
    url: Url | Sink,
    mode: str = "r",
    *,
    fsync: bool = False,
    options: Mapping[str, Any] | None = None,
    **image: Any,
) -> StoredPlate | PlateWriter:
    """Open a stored plate to read it, or with mode "a" to add wells, fields and acquisitions.

    With mode "a", `image` are arguments of `create_image` that new fields share, and
    `plate[row, column, field]` continues a field that exists. Wells that exist stay as they are.
    """
    if mode not in ("r", "a"):
        raise WeftError(f"mode is 'r' or 'a', got {mode!r}")
    sink = sink_of(url, options=options, fsync=fsync)
    group = read_ome(sink)
    metadata = Plate.from_json(group.ome)
    if mode == "r":
        if image:
            raise WeftError(f"{', '.join(image)}: these are for mode 'a'")
        return StoredPlate(sink, metadata, FrozenMap(group.attributes.items()))
    read_group(sink)  # refuses Zarr v2
    with locked(sink) as lock:
        recover(sink)
        plate = Plate.from_json(read_ome(sink).ome)
        return PlateWriter(sink, plate, image, lock)

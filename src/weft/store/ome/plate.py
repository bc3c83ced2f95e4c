"""Plates in OME-NGFF 0.5: wells of images, which grow while they are written."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from os import fspath
from pathlib import PurePath
from typing import Any

from weft.errors import WeftError
from weft.store.create import locked
from weft.store.hierarchy import group_json, joined, read_ome, sink_of, write_group
from weft.store.ome.image import Image, ImageWriter, create_image, open_image
from weft.store.ome.metadata import Acquisition, FieldOfView, Plate, Well, WellPosition, as_name
from weft.store.sink import Lock, Sink, Url
from weft.store.target import check_target, recover
from weft.store.target import replace as replace_target
from weft.store.writer import Closeable


def create_plate(
    url: Url,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    name: str | None = None,
    acquisitions: Sequence[Acquisition] = (),
    field_count: int | None = None,
    overwrite: bool = False,
    fsync: bool = False,
    options: Mapping[str, Any] | None = None,
    **image: Any,
) -> PlateWriter:
    """Create a plate; `image` are arguments of `create_image` that all fields share.

    A well is listed as soon as it has an image: metadata list what exists, at any moment. Until
    the first field, the plate is a group without attributes.

    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     image = {"shape": (4, 4), "dtype": "uint8", "chunks": (4, 4), "axes": "yx"}
    ...     with create_plate(f"{folder}/p.zarr", "AB", "123", **image) as plate:
    ...         plate.field("B", "2", 0).append(np.ones((4, 4), "uint8"))
    ...     plate = open_plate(f"{folder}/p.zarr")
    ...     print(plate.plate.wells, plate.image("B", "2", 0).levels[0].shape)
    (WellPosition(row='B', column='2'),) (4, 4)
    """
    label = PurePath(fspath(url)).name if name is None else name
    plate = Plate(tuple(rows), tuple(columns), (), tuple(acquisitions), label, field_count)
    sink = sink_of(url, options=options, fsync=fsync)
    check_target(sink, overwrite)
    with locked(sink) as lock:
        recover(sink)
        check_target(sink, overwrite)
        replace_target(sink, group_json({}))
        common = {"overwrite": overwrite, "fsync": fsync, "options": options}
        return PlateWriter(fspath(url), sink, plate, common | image, lock)


class PlateWriter(Closeable):
    """Creates the images of a plate; used in a `with` block. Any thread may create fields."""

    def __init__(
        self, url: str, sink: Sink, plate: Plate, image: Mapping[str, Any], lock: Lock
    ) -> None:
        self.url, self.plate = url, plate
        self._store_lock, self._is_open = lock, True
        self._sink, self._image = sink, dict(image)
        self.images: dict[tuple[str, str, str], ImageWriter] = {}
        """The images that are open, by row, column and field."""
        self._wells: dict[WellPosition, Well] = {}
        self._max_fields = plate.field_count
        self._lock = threading.Lock()

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
            if not self._is_open:
                raise WeftError(f"{self.url} is closed: no field can be added")
            position, path = WellPosition(str(row), str(column)), as_name(str(field), "field")
            well = self._checked(position, path, acquisition)
            options = self._image | {"name": f"{position.row}/{position.column}/{path}"} | image
            writer = create_image(joined(self.url, *position, path), **options)
            try:
                self._list(position, well)
            except BaseException:
                writer.close()
                raise
            self.images = {key: image for key, image in self.images.items() if image.is_open}
            self.images[(*position, path)] = writer
            return writer

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
            raise WeftError(f"{where} exists already")
        if self._max_fields is not None and len(before) == self._max_fields:
            raise WeftError(f"{where}: the well has {len(before)} fields, its field_count")
        return Well((*before, FieldOfView(path, acquisition)))

    def _list(self, position: WellPosition, well: Well) -> None:
        """List a field in the metadata, from the inside to the outside."""
        row = self._sink.below(position.row)
        write_group(row.below(position.column), {"ome": well.to_json()})
        if position.row not in [known.row for known in self._wells]:
            write_group(row, {})
        count = max(len(well.fields), self.plate.field_count or 0)
        wells = self.plate.wells if position in self._wells else (*self.plate.wells, position)
        plate = replace(self.plate, wells=wells, field_count=count)
        if plate != self.plate:
            write_group(self._sink, {"ome": plate.to_json()})
        self.plate, self._wells[position] = plate, well

    def close(self) -> None:
        """Close all images, even if closing others fails."""
        with self._lock, ExitStack() as closing:
            if self._is_open:
                closing.callback(self._store_lock.release)
            self._is_open = False
            for writer in self.images.values():
                closing.callback(writer.close)

    def memory(self) -> int:
        """Return the most bytes that the open images buffer."""
        return sum(writer.memory() for writer in self.images.values() if writer.is_open)


@dataclass(frozen=True, slots=True)
class StoredPlate:
    """A stored plate: its metadata, and its images."""

    url: str
    plate: Plate
    options: Mapping[str, Any] | None = None

    def well(self, row: str, column: str) -> Well:
        """Return the metadata of a well."""
        if WellPosition(row, column) not in self.plate.wells:
            raise WeftError(f"{self.url} has no well {row}/{column}")
        where = joined(self.url, row, column)
        return Well.from_json(read_ome(sink_of(where, options=self.options)))

    def image(self, row: str, column: str, field: str | int) -> Image:
        """Open a field of a well."""
        paths = [one.path for one in self.well(row, column).fields]
        if str(field) not in paths:
            raise WeftError(f"well {row}/{column} has no field {field}, only {paths}")
        where = joined(self.url, row, column, str(field))
        return open_image(where, options=self.options)


def open_plate(url: Url, *, options: Mapping[str, Any] | None = None) -> StoredPlate:
    """Open a stored plate."""
    metadata = Plate.from_json(read_ome(sink_of(url, options=options)))
    return StoredPlate(fspath(url), metadata, options)

"""Plates: wells of images in a group of groups, which grow while they are written."""

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
from weft.store.hierarchy import group_text, joined, read_ome, sink_of, write_group
from weft.store.ome.image import Image, ImageWriter, create_image, open_image
from weft.store.ome.metadata import Acquisition, Field, Plate, Spot, Well, as_name
from weft.store.sink import Lock, Sink, Url
from weft.store.target import check_target, recover
from weft.store.target import replace as replace_target
from weft.store.writer import Closing


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
    """A new plate; `image` are arguments of `create_image` for all fields that do not say others.

    A plate has a well as soon as that has an image: metadata list what is there, at any moment.
    Until the first field, the plate is a group that says nothing.

    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     image = {"shape": (4, 4), "dtype": "uint8", "chunks": (4, 4), "axes": "yx"}
    ...     with create_plate(f"{folder}/p.zarr", "AB", "123", **image) as plate:
    ...         plate.field("B", "2", 0).append(np.ones((4, 4), "uint8"))
    ...     found = open_plate(f"{folder}/p.zarr")
    ...     print(found.plate.wells, found.image("B", "2", 0).levels[0].shape)
    (Spot(row='B', column='2'),) (4, 4)
    """
    said = PurePath(fspath(url)).name if name is None else name
    plate = Plate(tuple(rows), tuple(columns), (), tuple(acquisitions), said, field_count)
    sink = sink_of(url, options=options, fsync=fsync)
    check_target(sink, overwrite)
    with locked(sink) as lock:
        recover(sink)
        check_target(sink, overwrite)
        replace_target(sink, group_text({}))
        common = {"overwrite": overwrite, "fsync": fsync, "options": options}
        return PlateWriter(fspath(url), sink, plate, common | image, lock)


class PlateWriter(Closing):
    """Makes the images of a plate; used in a `with` block. Fields may be made by any thread."""

    def __init__(
        self, url: str, sink: Sink, plate: Plate, image: Mapping[str, Any], lock: Lock
    ) -> None:
        self.url, self.plate = url, plate
        self._writing, self._is_open = lock, True
        self._sink, self._image = sink, dict(image)
        self.images: dict[tuple[str, str, str], ImageWriter] = {}
        """The images that are not closed yet, by row, column and field."""
        self._wells: dict[Spot, Well] = {}
        self._most = plate.field_count
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
        """A new image of a well; what is not said here is as `create_plate` was told."""
        with self._lock:
            if not self._is_open:
                raise WeftError(f"{self.url} is closed: no field can be added")
            spot, path = Spot(str(row), str(column)), as_name(str(field), "field")
            well = self._checked(spot, path, acquisition)
            options = self._image | {"name": f"{spot.row}/{spot.column}/{path}"} | image
            writer = create_image(joined(self.url, *spot, path), **options)
            try:
                self._list(spot, well)
            except BaseException:
                writer.close()
                raise
            self.images = {key: image for key, image in self.images.items() if image.is_open}
            self.images[(*spot, path)] = writer
            return writer

    def _checked(self, spot: Spot, path: str, acquisition: int | None) -> Well:
        """The well with one more field."""
        replace(self.plate, wells=(spot,))  # which refuses a row or a column that is not there
        known = [run.id for run in self.plate.acquisitions]
        where = f"field {spot.row}/{spot.column}/{path}"
        if acquisition is None and len(known) > 1:
            raise WeftError(f"{where} must say its acquisition: one of {known}")
        if acquisition is not None and acquisition not in known:
            raise WeftError(f"{where}: there is no acquisition {acquisition}, only {known}")
        before = self._wells[spot].fields if spot in self._wells else ()
        if path in [found.path for found in before]:
            raise WeftError(f"{where} was made before")
        if self._most is not None and len(before) == self._most:
            raise WeftError(f"{where}: the well has {len(before)} fields, as many as were said")
        return Well((*before, Field(path, acquisition)))

    def _list(self, spot: Spot, well: Well) -> None:
        """Say in the metadata that a field is there, from the inside to the outside."""
        row = self._sink.below(spot.row)
        write_group(row.below(spot.column), {"ome": well.to_json()})
        if spot.row not in [known.row for known in self._wells]:
            write_group(row, {})
        count = max(len(well.fields), self.plate.field_count or 0)
        wells = self.plate.wells if spot in self._wells else (*self.plate.wells, spot)
        plate = replace(self.plate, wells=wells, field_count=count)
        if plate != self.plate:
            write_group(self._sink, {"ome": plate.to_json()})
        self.plate, self._wells[spot] = plate, well

    def close(self) -> None:
        """Close all images; each of them is closed in any case."""
        with self._lock, ExitStack() as closing:
            if self._is_open:
                closing.callback(self._writing.release)
            self._is_open = False
            for writer in self.images.values():
                closing.callback(writer.close)

    def memory(self) -> int:
        """The bytes that the images that are not closed hold at most, whatever comes."""
        return sum(writer.memory() for writer in self.images.values() if writer.is_open)


@dataclass(frozen=True, slots=True)
class StoredPlate:
    """A plate that is there: what it says of itself, and its images."""

    url: str
    plate: Plate
    options: Mapping[str, Any] | None = None

    def well(self, row: str, column: str) -> Well:
        """What a well says of its fields."""
        if Spot(row, column) not in self.plate.wells:
            raise WeftError(f"{self.url} has no well {row}/{column}")
        where = joined(self.url, row, column)
        return Well.from_json(read_ome(sink_of(where, options=self.options)))

    def image(self, row: str, column: str, field: str | int) -> Image:
        """A field of a well."""
        paths = [found.path for found in self.well(row, column).fields]
        if str(field) not in paths:
            raise WeftError(f"well {row}/{column} has no field {field}, only {paths}")
        where = joined(self.url, row, column, str(field))
        return open_image(where, options=self.options)


def open_plate(url: Url, *, options: Mapping[str, Any] | None = None) -> StoredPlate:
    """A plate that is there."""
    said = read_ome(sink_of(url, options=options))
    return StoredPlate(fspath(url), Plate.from_json(said), options)

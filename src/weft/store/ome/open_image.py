"""`open_image`: an image that is there, to read, or to append more frames to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, overload

from weft.errors import WeftError
from weft.store.address import sink_of
from weft.store.create import (
    arrival_of,
    frame_ndim_of,
    open_array,
    promised,
    promised_blocks,
)
from weft.store.delivery import counted
from weft.store.group import joined, read_ome
from weft.store.new import locked
from weft.store.ome.image import ImageWriter
from weft.store.ome.multiscale import Axis, Multiscale
from weft.store.pyramid.levels import Pyramid
from weft.store.pyramid.reduce import METHODS
from weft.store.reading.reader import Array
from weft.store.sink import Lock, Url
from weft.store.target import recover
from weft.store.tiling import Tiling
from weft.store.writer import Writer
from weft.values import Point


@dataclass(frozen=True, slots=True)
class Image:
    """An image that is there: what it says of itself, and its levels, the finest first."""

    metadata: Multiscale
    levels: tuple[Array, ...]

    @property
    def axes(self) -> tuple[Axis, ...]:
        """What the dimensions are."""
        return self.metadata.axes

    @property
    def scales(self) -> tuple[tuple[float, ...], ...]:
        """For each level, how far apart two elements are along every axis."""
        return tuple(level.scale for level in self.metadata.levels)

    @property
    def translations(self) -> tuple[tuple[float, ...], ...]:
        """For each level, where its first element lies."""
        return tuple(level.translation for level in self.metadata.levels)


@overload
def open_image(
    url: Url, mode: Literal["r"] = "r", *, options: Mapping[str, Any] | None = None
) -> Image: ...


@overload
def open_image(
    url: Url,
    mode: Literal["a"],
    *,
    threads: int | None = None,
    fsync: bool = False,
    options: Mapping[str, Any] | None = None,
) -> ImageWriter: ...


def open_image(
    url: Url,
    mode: str = "r",
    *,
    threads: int | None = None,
    fsync: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Image | ImageWriter:
    """An image that is there: to read, or with mode "a" to append more frames to.

    An image that is continued goes on behind the frames that its finest level has. Levels that a
    crash left behind, or that end with a window that was not full, are made again from there.
    """
    if mode not in ("r", "a"):
        raise WeftError(f"mode is 'r' or 'a', and not {mode!r}")
    if mode == "r":
        return _opened(url, options)
    sink = sink_of(url, options=options, fsync=fsync)
    _opened(url, options)  # before anything is created to lock it
    with locked(sink) as lock:
        recover(sink)
        return _Continued(url, _opened(url, options), fsync, options).writer(threads, lock)


def _opened(url: Url, options: Mapping[str, Any] | None) -> Image:
    """Read what an image says of itself, and open its levels."""
    metadata = Multiscale.from_json(read_ome(sink_of(url, options=options)))
    names = [axis.name for axis in metadata.axes]
    arrays = []
    for level in metadata.levels:
        array = open_array(joined(url, level.path), options=options)
        said = array.metadata.dimension_names
        if len(array.shape) != len(names):
            raise WeftError(f"level {level.path} has rank {len(array.shape)}, and axes are {names}")
        if said is not None and list(said) != names:
            raise WeftError(f"level {level.path} has dimensions {list(said)}, and not {names}")
        arrays.append(array)
    return Image(metadata, tuple(arrays))


class _Continued:
    """An image that goes on."""

    def __init__(
        self, url: Url, image: Image, fsync: bool, options: Mapping[str, Any] | None
    ) -> None:
        self.url, self.image, self.fsync, self.options = url, image, fsync, options
        self.finest = image.levels[0]
        self.paths = [level.path for level in image.metadata.levels]
        self.dims = arrival_of(self.finest.metadata)
        self.factors, self.method = _recipe(image.metadata)

    def writer(self, threads: int | None, lock: Lock) -> ImageWriter:
        """Coarser levels are brought to where the finest is before that is opened."""
        with ExitStack() as opened:
            start, levels = self._start(), []
            for number in range(1, len(self.paths)):
                self._shorten(number, start // self._outer**number)
                levels.append(opened.enter_context(self._open(number, 1)))
            pyramid = None
            if levels:
                pyramid = self._pyramid(levels, start)
                opened.callback(pyramid.close)
                self._replay(pyramid, start)
            finest = opened.enter_context(self._open(0, threads))
            where = sink_of(self.url, options=self.options).url
            made = ImageWriter(where, self.image.metadata, [finest, *levels], pyramid, lock)
            opened.pop_all()
        return made

    @property
    def _outer(self) -> int:
        """The factor of the dimension to which is appended."""
        return self.factors[self.dims[0]]

    def _start(self) -> int:
        """The row of the finest level from which on all others are made again.

        Before it, all levels have all of their windows, and those are full.
        """
        rows = []
        for level in self.image.levels:
            tiling = self._tiling(level)
            rows.append(promised(level.metadata, tiling) // max(1, tiling.units[0]))
        least = min(count * self._outer**number for number, count in enumerate(rows))
        whole = int(self._outer ** (len(rows) - 1))
        return int(least) // whole * whole

    def _shorten(self, number: int, rows: int) -> None:
        """Let a level have no more than some of its rows; what was behind them is made again."""
        level = self.image.levels[number]
        tiling = self._tiling(level)
        text = counted(level.metadata, tiling, rows * tiling.units[0]).to_json()
        if text == level.metadata.to_json():
            return
        sink = sink_of(self._at(number), options=self.options, fsync=self.fsync)
        lock = sink.lock()
        try:
            sink.put("zarr.json", text.encode())
        finally:
            lock.release()

    def _at(self, number: int) -> str:
        return joined(self.url, self.paths[number])

    def _open(self, number: int, threads: int | None) -> Writer:
        return open_array(
            self._at(number), mode="a", threads=threads, fsync=self.fsync, options=self.options
        )

    def _pyramid(self, levels: Sequence[Writer], start: int) -> Pyramid:
        sizes = (None, *(self.finest.shape[dim] for dim in self.dims[1:]))
        factors = [self.factors[dim] for dim in self.dims]
        dtype = self.finest.metadata.dtype
        return Pyramid(sizes, factors, self.method, dtype, levels, start)

    def _replay(self, pyramid: Pyramid, start: int) -> None:
        """Give rows of the finest level to the others once more, as many at a time as a chunk."""
        step = self.finest.metadata.chunks[self.dims[0]]
        for block in promised_blocks(self.finest, self._tiling(self.finest), step, start):
            pyramid.take(block)

    def _tiling(self, level: Array) -> Tiling:
        """How the elements of a level arrived."""
        said = level.metadata
        ndim = frame_ndim_of(said, self.dims)
        return Tiling(said.shape, said.chunks, said.shards, self.dims, frame_ndim=ndim)


def _recipe(metadata: Multiscale) -> tuple[Point, str]:
    """How each level was made of the one before."""
    factors, method = metadata.metadata.get("factors", ()), metadata.type
    is_whole = all(isinstance(f, int) and f > 0 for f in factors)
    if len(factors) != len(metadata.axes) or not is_whole or method not in METHODS:
        raise WeftError(
            "nothing is appended to this image: it does not say how its levels were made",
            hint="metadata.factors and type, as weft.store writes them",
        )
    return tuple(factors), method

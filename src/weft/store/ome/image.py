"""Images: a pyramid of arrays in a group, streamed like one array, in OME-NGFF 0.5.

`open_image`: an image that is there, to read, or to append more frames to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from os import fspath
from pathlib import PurePath
from typing import Any, Literal, overload

from weft.errors import WeftError
from weft.store.array import Array
from weft.store.assembler import counted
from weft.store.chunk_layout import Tiling
from weft.store.create import (
    PlannedArray,
    arrival_of,
    arrival_order,
    frame_ndim_of,
    locked,
    open_array,
    plan_array,
    promised,
    promised_blocks,
    without_elements,
)
from weft.store.hierarchy import group_text, joined, read_ome, sink_of
from weft.store.metadata import checked
from weft.store.metrics import Metrics
from weft.store.ome.metadata import Axis, Multiscale
from weft.store.pyramid.levels import Pyramid
from weft.store.pyramid.reduce import METHODS, check_reduction
from weft.store.sink import Lock, Sink, Url
from weft.store.target import STAGED, check_target, recover, replace
from weft.store.writer import Finishing, Writer
from weft.values import Point


def create_image(
    url: Url,
    shape: Sequence[int | None],
    dtype: Any,
    chunks: Sequence[int],
    shards: Sequence[int] | None = None,
    *,
    axes: Sequence[Axis | str],
    scale: Sequence[float] | None = None,
    translation: Sequence[float] | None = None,
    factors: Sequence[int] | None = None,
    levels: int | None = None,
    method: str = "mean",
    name: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    append_dim: int = 0,
    arrival: Sequence[int] | None = None,
    overwrite: bool = False,
    fsync: bool = False,
    threads: int | None = None,
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> ImageWriter:
    """A new image, to which frames are appended; coarser levels are made as they arrive.

    A level has one element for each window of the level before: `factors` says how many elements
    that is along every dimension, 2 along the last two unless said. `levels` counts all of them,
    the finest included; unless said, there are as many as it takes until a frame fits a chunk.
    `scale` is how far apart two elements of the finest level are. What else `create` takes is for
    every level.

    >>> import tempfile, numpy as np
    >>> from weft.store.ome.image import open_image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with create_image(
    ...         f"{folder}/a", (None, 4, 4), "uint8", (1, 2, 2), axes="tyx", scale=(1, 0.5, 0.5)
    ...     ) as writer:
    ...         writer.append(np.arange(32, dtype="uint8").reshape(2, 4, 4))
    ...     image = open_image(f"{folder}/a")
    ...     print(image.scales, image.levels[1].read()[0].tolist())
    ((1.0, 0.5, 0.5), (1.0, 1.0, 1.0)) [[3, 5], [11, 13]]
    """
    dims = arrival_order(len(shape), append_dim, arrival)
    sizes, small, large = checked(shape, chunks, shards or chunks, dims[0])
    steps = tuple(factors) if factors is not None else (*[1] * (len(sizes) - 2), 2, 2)
    if len(steps) != len(sizes):
        raise WeftError(f"{len(steps)} factors for {len(sizes)} dimensions")
    check_reduction([sizes[d] for d in dims], [steps[d] for d in dims], method, dtype)
    count = _count(levels, sizes, small, steps)
    said = PurePath(fspath(url)).name if name is None else name
    image = Multiscale.of(axes, scale, steps, count, method, translation=translation, name=said)
    sink = sink_of(url, options=options, fsync=fsync)
    common = more | {
        "dimension_names": [axis.name for axis in image.axes],
        "append_dim": append_dim,
        "arrival": arrival,
    }
    arrays = _arrays(sizes, small, large, steps, count)
    plans = []
    for number, (level, at, size) in enumerate(arrays):
        coarse: dict[str, Any] = {"threads": threads}
        if number and common.get("device", "cpu") == "cpu":  # less comes here
            coarse = {"threads": 1, "epochs": 2}
        where = sink.below(str(number))
        plans.append(plan_array(where, level, dtype, at, size, **(common | coarse)))
    check_target(sink, overwrite)
    with locked(sink) as lock, ExitStack() as opened:
        _begin(sink, image, attributes or {}, plans, overwrite)
        writers = [opened.enter_context(plan.writer(overwrite=True)) for plan in plans]
        made = ImageWriter(sink.url, image, writers, pyramid_of(writers, steps, method), lock)
        opened.pop_all()
    return made


def _begin(
    sink: Sink,
    image: Multiscale,
    attributes: Mapping[str, Any],
    plans: Sequence[PlannedArray],
    overwrite: bool,
) -> None:
    """Make an image whose levels are empty, in place of what may be replaced."""
    recover(sink)
    check_target(sink, overwrite)
    levels = {
        level.path: without_elements(plan.metadata).to_json().encode()
        for level, plan in zip(image.levels, plans)
    }
    staged = dataclasses.replace(
        image,
        levels=tuple(
            dataclasses.replace(level, path=f"{STAGED}/{level.path}") for level in image.levels
        ),
    )
    new, empty = (group_text({**attributes, "ome": one.to_json()}) for one in (image, staged))
    replace(sink, new, empty=empty, members=levels)


def _count(
    levels: int | None, sizes: Sequence[int | None], chunks: Point, factors: Sequence[int]
) -> int:
    """How many levels there are: as said, or until what is reduced fits a chunk."""
    if levels is None:
        count, left = 1, list(sizes)
        while any(n is not None and f > 1 and n > c for n, c, f in zip(left, chunks, factors)):
            left = [None if n is None else -(-n // f) for n, f in zip(left, factors)]
            count += 1
        return count
    if isinstance(levels, bool) or not isinstance(levels, int) or levels < 1:
        raise WeftError(f"levels: {levels!r}, where 1, 2, 3, … can be")
    if levels > 1 and max(factors) == 1:
        raise WeftError(f"{levels} levels, and nothing is reduced: factors of {list(factors)}")
    return levels


def _arrays(
    sizes: Sequence[int | None], chunks: Point, shards: Point, factors: Sequence[int], count: int
) -> list[tuple[tuple[int | None, ...], Point, Point]]:
    """The shape, chunks and shards of every level: as said, but for coarser ones not larger."""
    found = [(tuple(sizes), chunks, shards)]
    for number in range(1, count):
        shape = [None if n is None else -(-n // f**number) for n, f in zip(sizes, factors)]
        small = [c if n is None else max(1, min(c, n)) for n, c in zip(shape, chunks)]
        large = [
            s // c * d if n is None else max(1, min(s // c, -(-n // d))) * d
            for n, c, d, s in zip(shape, chunks, small, shards)
        ]
        found.append((tuple(shape), tuple(small), tuple(large)))
    return found


def pyramid_of(writers: Sequence[Writer], factors: Sequence[int], method: str) -> Any:
    """What makes all levels of the finest, where the finest is made; None if there is no other."""
    if len(writers) == 1:
        return None
    tiling, dtype = writers[0].tiling, writers[0].metadata.dtype
    kind: Any = Pyramid
    if writers[0].device == "cuda":
        kind = import_module("weft.store.cuda.pyramid").DevicePyramid
    return kind(tiling.sizes, [factors[d] for d in tiling.dims], method, dtype, writers[1:])


class ImageWriter(Finishing):
    """Appends frames to an image; used in a `with` block, by one thread."""

    def __init__(
        self,
        url: str,
        image: Multiscale,
        levels: Sequence[Writer],
        pyramid: Any,
        lock: Lock,
    ) -> None:
        self.url, self.image, self.levels = url, image, tuple(levels)
        self._pyramid, self._lock = pyramid, lock
        self.is_open = True
        """Whether frames can be appended."""
        for level in self.levels:
            level.unwatch()
        self.watch()

    @property
    def name(self) -> str:
        """Where it writes."""
        return self.url

    def append(self, block: Any) -> None:
        """Append one frame, or several, as `Writer.append` takes them; coarser levels follow."""
        self._append(block, self.levels[0].append)

    def append_rows(self, block: Any) -> None:
        """Append loose rows, as `Writer.append_rows` takes them."""
        self._append(block, self.levels[0].append_rows)

    def _append(self, block: Any, append: Callable[..., None]) -> None:
        if self._pyramid is None:
            append(block)
            return
        self._pyramid.check()
        values, is_own = self.levels[0].as_block(block)
        append(values, is_kept=True)
        self._pyramid.take(values, is_own=is_own)
        self.levels[0].release()

    def flush(self) -> None:
        """Wait until all that was appended is written, and windows that are full, and show it."""
        self.levels[0].flush()
        if self._pyramid is not None:
            self._pyramid.drain()
        for writer in self.levels[1:]:
            writer.flush()

    def close(self) -> None:
        """Write what is there, windows that are not full too; all levels are closed in any case."""
        if not self.is_open:
            return
        self.is_open = False
        self.unwatch()
        with ExitStack() as closing:
            closing.callback(self._lock.release)
            for writer in reversed(self.levels):
                closing.callback(writer.close)
            if self._pyramid is not None:
                closing.callback(self._pyramid.close)

    def memory(self) -> int:
        """The bytes that are held at most, whatever comes."""
        held = sum(writer.memory() for writer in self.levels)
        return held + (self._pyramid.memory() if self._pyramid is not None else 0)

    def metrics(self) -> tuple[Metrics, ...]:
        """What was done so far, level by level."""
        return tuple(writer.metrics() for writer in self.levels)

    @property
    def shape(self) -> Point:
        """The shape of what has been appended."""
        return self.levels[0].shape

    @property
    def frames(self) -> int:
        """How many frames have been appended."""
        return self.levels[0].frames

    @property
    def safe(self) -> int:
        """How many frames of the finest level readers see now, and after a crash.

        Coarser levels that a crash leaves behind are made again from the finest by
        `open_image(url, mode="a")`.
        """
        return self.levels[0].safe


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

"""Images in OME-NGFF 0.5: a pyramid of arrays in a group, streamed like one array."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from math import prod
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from weft.errors import WeftError
from weft.space import BlockGrid
from weft.store.array import Array
from weft.store.attributes import Attributes, node_attributes
from weft.store.buffers import MemoryUse
from weft.store.chunk_layout import FrameLayout, resolve_axis_order, stored_axis_order
from weft.store.create import (
    PlannedArray,
    continue_array,
    locked,
    open_array,
    plan_array,
    promised_blocks,
)
from weft.store.frames import FrameTable
from weft.store.hierarchy import (
    group_json,
    member_of,
    ome_of,
    read_group,
    read_node,
    read_ome,
    sink_of,
)
from weft.store.json_data import as_attributes
from weft.store.metadata import EVERY_SHARD, check_shapes, own_attributes, without_elements
from weft.store.metrics import Metrics
from weft.store.ome.channels import (
    Channel,
    as_channels,
    check_channels,
    omero_json,
    read_channels,
)
from weft.store.ome.metadata import Axis, Multiscale, PerAxis
from weft.store.pyramid.lengths import LevelLengths
from weft.store.pyramid.levels import Pyramid
from weft.store.pyramid.reduce import MAX_WINDOW, METHODS, check_reduction
from weft.store.sink import Lock, Sink, Url
from weft.store.target import STAGED, check_target, recover, replace
from weft.store.view import HoldsArrays
from weft.store.writer import AutoClosed, Writer
from weft.values import FrozenMap, Point, check_list, counted

if TYPE_CHECKING:
    from weft.store.ome.labels import Labels

MAX_FILL = 1 << 20
"""Elements of fill value that are passed to coarser levels at a time, for dropped frames."""


def create_image(
    url: Url | Sink,
    shape: Sequence[int | None],
    dtype: Any,
    chunks: Sequence[int],
    shards: Sequence[int] | None = None,
    *,
    axes: Sequence[Axis | str],
    scale: PerAxis | None = None,
    translation: PerAxis | None = None,
    channels: Sequence[Channel | str | Mapping[str, Any]] | None = None,
    factors: Sequence[int] | None = None,
    levels: int | None = None,
    method: str = "mean",
    name: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    append_dim: int = 0,
    axis_order: Sequence[int] | None = None,
    overwrite: bool = False,
    fsync: bool = False,
    threads: int | None = None,
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> ImageWriter:
    """Create an image to which frames are appended; coarser levels are computed as they arrive.

    A level has one element for each window of the level before: `factors` are the sizes of a
    window, 2 along the last two dimensions unless given. `levels` counts all of them, the finest
    included; unless given, there are as many as it takes until a frame fits a chunk. `scale` is
    the distance between two elements of the finest level, and `translation` the position of the
    first: a number for each axis, or for some of them by name, as in {"y": 0.5, "x": 0.5}.
    `channels` are names or `Channel`s, one for each element of the channel axis. `attributes` are
    kept beside the metadata of the image; what they say below "ome" is added to these, and refused
    where it contradicts them. The other arguments of `create` apply to every level.

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with create_image(
    ...         f"{folder}/a", (None, 4, 4), "uint8", (1, 2, 2), axes="tyx", scale=(1, 0.5, 0.5)
    ...     ) as writer:
    ...         writer.append(np.arange(32, dtype="uint8").reshape(2, 4, 4))
    ...     image = open_image(f"{folder}/a")
    ...     print(image.scales, image.levels[1].read()[0].tolist())
    ((1.0, 0.5, 0.5), (1.0, 1.0, 1.0)) [[3, 5], [11, 13]]
    """
    check_list(shape, "shape")
    dims = resolve_axis_order(len(shape), append_dim, axis_order)
    sizes, small, large = check_shapes(shape, chunks, shards, dims[0])
    steps = tuple(factors) if factors is not None else (*[1] * (len(sizes) - 2), 2, 2)
    if len(steps) != len(sizes):
        raise WeftError(f"{len(steps)} factors for {len(sizes)} dimensions")
    check_reduction([sizes[d] for d in dims], [steps[d] for d in dims], method, dtype)
    count = _level_count(levels, sizes, small, steps)
    sink = sink_of(url, options=options, fsync=fsync)
    label = PurePath(sink.url).name if name is None else name
    image = Multiscale.of(axes, scale, steps, count, method, translation=translation, name=label)
    ome = image.to_json()
    if channels is not None:
        ome["omero"] = omero_json(as_channels(channels, image.axes, sizes, dtype), label)
    document = merged({"ome": ome}, attributes, "attributes")
    image = Multiscale.from_json(document["ome"])
    check_channels(document["ome"], image.axes, sizes, dtype)
    names = [axis.name for axis in image.axes]
    if list(more.get("dimension_names") or names) != names:
        raise WeftError(f"dimension_names of {more['dimension_names']}, and axes of {names}")
    common = more | {
        "dimension_names": names,
        "append_dim": append_dim,
        "axis_order": axis_order,
    }
    plans = []
    for number, level in enumerate(_level_shapes(sizes, small, large, steps, count, dims[0])):
        own: dict[str, Any] = {"threads": threads}
        if number and common.get("device", "cpu") == "cpu":  # coarser levels have less to do
            own = {"threads": 1, "epochs": common.get("epochs", 2)}
        where, (size, chunk, shard) = sink.below(str(number)), level
        plans.append(plan_array(where, size, dtype, chunk, shard, **(common | own)))
    check_target(sink, overwrite)
    with locked(sink) as lock, ExitStack() as opened:
        _begin(sink, document, plans, overwrite)
        writers = [opened.enter_context(plan.create(overwrite=True)) for plan in plans]
        pyramid = create_pyramid(writers, steps, method)
        writer = ImageWriter(sink, image, writers, pyramid, lock)
        opened.pop_all()
    return writer


def _begin(
    sink: Sink, document: Mapping[str, Any], plans: Sequence[PlannedArray], overwrite: bool
) -> None:
    """Create an image whose levels are empty, replacing what may be replaced."""
    recover(sink)
    check_target(sink, overwrite)
    staged = json.loads(json.dumps(document))
    levels = {}
    for level, plan in zip(staged["ome"]["multiscales"][0]["datasets"], plans):
        levels[level["path"]] = without_elements(plan.metadata).to_json().encode()
        level["path"] = f"{STAGED}/{level['path']}"
    replace(sink, group_json(document), empty=group_json(staged), members=levels)


def merged(own: Mapping[str, Any], given: Mapping[str, Any] | None, path: str) -> dict[str, Any]:
    """Return metadata with those that a caller gave added; refuse what contradicts them.

    >>> merged({"ome": {"version": "0.5"}}, {"ome": {"_creator": {"name": "me"}}, "a": 1}, "x")
    {'ome': {'version': '0.5', '_creator': {'name': 'me'}}, 'a': 1}
    >>> merged({"version": "0.5"}, {"version": "0.4"}, "ome")
    Traceback (most recent call last):
    weft.errors.WeftError: ome.version: '0.4' was given, and '0.5' is written
    """
    plain = as_attributes(given, path)
    return {
        **{key: _merged(own[key], plain.get(key, own[key]), f"{path}.{key}") for key in own},
        **{key: value for key, value in plain.items() if key not in own},
    }


def _merged(own: Any, given: Any, path: str) -> Any:
    if isinstance(own, Mapping) and isinstance(given, Mapping):
        return merged(own, given, path)
    if isinstance(own, list) and isinstance(given, list | tuple) and len(own) == len(given):
        return [_merged(a, b, f"{path}[{n}]") for n, (a, b) in enumerate(zip(own, given))]
    if own != given:
        raise WeftError(f"{path}: {given!r} was given, and {own!r} is written")
    return own


def _reduced(size: int | None, factor: int) -> int | None:
    """Return the number of windows of a dimension; None where it has no end."""
    return None if size is None else BlockGrid.blocks((size,), (factor,)).size


def _level_count(
    levels: int | None, sizes: Sequence[int | None], chunks: Point, factors: Sequence[int]
) -> int:
    """Return the number of levels: as given, or until a reduced frame fits a chunk."""
    if levels is None:
        count, left = 1, list(sizes)
        while any(n is not None and f > 1 and n > c for n, c, f in zip(left, chunks, factors)):
            left = list(map(_reduced, left, factors))
            count += 1
        return count
    if isinstance(levels, bool) or not isinstance(levels, int) or levels < 1:
        raise WeftError(f"levels: expected an integer from 1 on, got {levels!r}")
    if levels > 1 and max(factors) == 1:
        raise WeftError(f"{levels} levels, but factors of {list(factors)} reduce nothing")
    return levels


def _level_shapes(
    sizes: Sequence[int | None],
    chunks: Point,
    shards: Point,
    factors: Sequence[int],
    count: int,
    append_dim: int,
) -> list[tuple[tuple[int | None, ...], Point, Point]]:
    """Return the shape, chunks and shards of each level; chunks are not larger than a level.

    Along the dimension that is appended to, a shard of each level has about as many frames of the
    finest, so that shards become complete together.
    """
    levels = [(tuple(sizes), chunks, shards)]
    for number in range(1, count):
        shape = tuple(_reduced(n, f**number) for n, f in zip(sizes, factors))
        small = tuple(c if n is None else max(1, min(c, n)) for n, c in zip(shape, chunks))
        large = []
        for dim, (n, c, d, s) in enumerate(zip(shape, chunks, small, shards)):
            along = s // c
            if dim == append_dim:
                along = along // factors[dim] ** number
            if n is not None:
                along = min(along, _reduced(n, d) or 0)
            large.append(max(1, along) * d)
        levels.append((shape, small, tuple(large)))
    return levels


def create_pyramid(writers: Sequence[Writer], factors: Sequence[int], method: str) -> Any:
    """Return what computes the coarser levels, on the device of the finest; None for one level."""
    if len(writers) == 1:
        return None
    layout, dtype = writers[0].layout, writers[0].metadata.dtype
    kind: Any = Pyramid
    if writers[0].device == "cuda":
        kind = import_module("weft.store.cuda.pyramid").DevicePyramid
    ordered = [factors[d] for d in layout.axis_order]
    return kind(layout.ordered_shape, ordered, method, dtype, writers[1:])


_NOTHING: FrozenMap[str, Any] = FrozenMap(())


class ImageWriter(AutoClosed):
    """Appends frames to an image; used in a `with` block. Threads that append take turns."""

    def __init__(
        self, sink: Sink, image: Multiscale, levels: Sequence[Writer], pyramid: Any, lock: Lock
    ) -> None:
        self.url, self.metadata, self.levels = sink.url, image, tuple(levels)
        self._sink = sink
        self._pyramid, self._lock = pyramid, lock
        self._turn = threading.RLock()
        """Held by the thread that appends: others wait."""
        self._lengths: LevelLengths | None = None
        layout = self.levels[0].layout
        if pyramid is not None and layout.step_sizes[0]:
            self._lengths = LevelLengths(self.levels, _recipe(image)[0][layout.append_axis])
        self.is_open = True
        """Whether frames can be appended."""
        for level in self.levels:
            level.unwatch()
        self.watch()

    @property
    def name(self) -> str:
        """The address of the image."""
        return self.url

    def append(self, block: Any, *, metadata: Any = None) -> None:
        """Append one frame, or several, as `Writer.append` takes them; coarser levels follow."""
        self._append(block, partial(self.levels[0].append, metadata=metadata))

    def skip(self, frames: int = 1) -> None:
        """Count frames that were dropped, as `Writer.skip` does; coarser levels follow."""
        with self._turn:
            self._skip(frames)

    def _skip(self, frames: int) -> None:
        finest = self.levels[0]
        left = finest.check_skip(frames)
        if self._pyramid is not None:
            self._pyramid.check()
        if self._pyramid is None:
            finest.skip(left)
            return
        fill = np.asarray(finest.metadata.fill, finest.dtype)
        with self._together(np.broadcast_to(fill, left * prod(finest.frame))):
            finest.skip(left)
            self._skip_levels(left)

    def _skip_levels(self, left: int) -> None:
        """Append frames of fill value to the coarser levels."""
        finest = self.levels[0]
        while left:
            count = min(left, max(1, MAX_FILL // max(1, prod(finest.frame))))
            fill = np.full((count, *finest.frame), finest.metadata.fill, finest.dtype)
            values, is_own = finest.to_device(fill)
            self._pyramid.append(values, is_own=is_own)
            left -= count

    @property
    def attrs(self) -> Attributes:
        """The attributes of the image, which can be changed during a recording and after it."""
        return node_attributes(self._sink, is_locked=lambda: self.is_open)

    def append_rows(self, block: Any) -> None:
        """Append loose rows, as `Writer.append_rows` takes them."""
        self._append(block, self.levels[0].append_rows)

    def _append(self, block: Any, append: Callable[..., None]) -> None:
        with self._turn:
            if self._pyramid is None:
                append(block)
                return
            self._pyramid.check()
            values, is_own = self.levels[0].to_device(block)
            with self._together(values):
                append(values, is_kept=True)
                self._pyramid.append(values, is_own=is_own)
            self.levels[0].release()

    @contextmanager
    def _together(self, values: Any) -> Iterator[None]:
        """Append values to all levels, even if that is interrupted in between (Ctrl-C)."""
        before, position = self.levels[0].elements, self._pyramid.position
        try:
            yield
        except BaseException as error:
            count = self.levels[0].elements - before
            try:
                if count:
                    self._pyramid.catch_up(values, position, count)
            except BaseException:
                self._pyramid.fail(error)
            raise

    def flush(self) -> None:
        """Wait until all frames and full windows are written, and make them visible."""
        with self._turn:
            self.levels[0].flush()
            if self._pyramid is not None:
                self._pyramid.drain()
            for writer in self.levels[1:]:
                writer.flush()
            if self._lengths is not None:
                self._lengths.flush()

    def close(self) -> None:
        """Write what was appended, windows that are not full too; close all levels in any case."""
        with self._turn, ExitStack() as closing:
            if not self.is_open:
                return
            self.is_open = False
            self.unwatch()
            closing.callback(self._lock.release)
            if self._lengths is not None:
                closing.callback(self._lengths.close)
            for writer in reversed(self.levels):
                closing.callback(writer.close)
            if self._pyramid is not None:
                closing.callback(self._pyramid.close)

    def memory(self) -> int:
        """Return the most bytes that are buffered."""
        return sum(use.total for use in self.memory_uses())

    def memory_uses(self) -> list[MemoryUse]:
        """Return the most bytes that are buffered, by what they depend on."""
        levels = [use for writer in self.levels for use in writer.memory_uses()]
        return levels if self._pyramid is None else [*levels, self._pyramid.memory()]

    def metrics(self) -> tuple[Metrics, ...]:
        """Return the metrics of each level."""
        return tuple(writer.metrics() for writer in self.levels)

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The channels, none where the metadata name none."""
        return read_channels(ome_of(self.attrs) or {})

    @property
    def shape(self) -> Point:
        """The shape of what was appended."""
        return self.levels[0].shape

    @property
    def frames(self) -> int:
        """The number of frames."""
        return self.levels[0].frames

    @property
    def safe(self) -> int:
        """The number of frames of the finest level that readers see now, and after a crash.

        Coarser levels that a crash leaves incomplete are computed again from the finest by
        `open_image(url, mode="a")`.
        """
        return self.levels[0].safe


# -- images that exist


@dataclass(frozen=True, slots=True, repr=False)
class Image(HoldsArrays):
    """A stored image: its metadata, and its levels, the finest first."""

    _ARRAYS = "image.levels[0]"
    metadata: Multiscale
    levels: tuple[Array, ...] = field(compare=False)  # arrays compare their elements
    sink: Sink
    attrs: Mapping[str, Any] = _NOTHING
    """All attributes of its group, as they were when it was opened."""
    ome: Mapping[str, Any] = _NOTHING
    """The metadata of OME-NGFF among them."""

    def __repr__(self) -> str:
        axes, finest = "".join(axis.name for axis in self.axes), self.levels[0]
        kind = f"{finest.metadata.dtype}{list(finest.shape)}"
        return f"<Image {axes} {kind}, {counted(len(self.levels), 'level')}, at {self.url}>"

    @property
    def url(self) -> str:
        """Where the image is."""
        return self.sink.url

    @property
    def name(self) -> str | None:
        """The name of the image."""
        return self.metadata.name

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The channels, none where the metadata name none."""
        return read_channels(self.ome)

    @property
    def labels(self) -> Labels:
        """The label images of this one, by name; `labels.create` adds one."""
        from weft.store.ome.labels import Labels

        return Labels(self)

    @property
    def image_label(self) -> Mapping[str, Any] | None:
        """The colours, properties and source of labels; None where this is no label image."""
        found = self.ome.get("image-label")
        return found if isinstance(found, Mapping) else None

    @property
    def append_dim(self) -> int:
        """The dimension along which frames are appended."""
        return stored_axis_order(self.levels[0].metadata)[0]

    @property
    def factors(self) -> Point:
        """The sizes of windows from a level to the next, as the scales say; 1 for one level."""
        steps = zip(self.scales[0], self.scales[min(1, len(self.scales) - 1)])
        return tuple(max(1, round(coarse / fine)) for fine, coarse in steps)

    @property
    def frames(self) -> FrameTable:
        """The metadata of the frames that were recorded, and which of them were dropped."""
        return self.levels[0].frames

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes, one for each dimension."""
        return self.metadata.axes

    @property
    def scales(self) -> tuple[tuple[float, ...], ...]:
        """For each level, the distance between two elements along each axis."""
        return tuple(level.scale for level in self.metadata.levels)

    @property
    def translations(self) -> tuple[tuple[float, ...], ...]:
        """For each level, the position of its first element."""
        return tuple(level.translation for level in self.metadata.levels)


@overload
def open_image(
    url: Url | Sink, mode: Literal["r"] = "r", *, options: Mapping[str, Any] | None = None
) -> Image: ...


@overload
def open_image(
    url: Url | Sink,
    mode: Literal["a"],
    *,
    threads: int | None = None,
    fsync: bool = False,
    options: Mapping[str, Any] | None = None,
) -> ImageWriter: ...


def open_image(
    url: Url | Sink,
    mode: str = "r",
    *,
    threads: int | None = None,
    fsync: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Image | ImageWriter:
    """Open a stored image to read it, or with mode "a" to append frames.

    Appending continues after the frames of the finest level. Levels that a crash left incomplete,
    or that end with a window that was not full, are computed again.
    """
    if mode not in ("r", "a"):
        raise WeftError(f"mode is 'r' or 'a', got {mode!r}")
    sink = sink_of(url, options=options, fsync=fsync)
    image = _read_image(sink)
    if mode == "r":
        return image
    read_group(sink)  # refuses Zarr v2
    with locked(sink) as lock:
        recover(sink)
        return _ImageContinuation(_read_image(sink)).writer(threads, lock)


def _read_image(sink: Sink) -> Image:
    group = read_ome(sink)
    metadata = Multiscale.from_json(group.ome)
    names = [axis.name for axis in metadata.axes]
    arrays = []
    for level in metadata.levels:
        array = open_array(member_of(sink, level.path))
        dims = array.metadata.dimension_names
        if len(array.shape) != len(names):
            raise WeftError(f"level {level.path} has rank {len(array.shape)}, and axes are {names}")
        if dims is not None and list(dims) != names:
            raise WeftError(f"level {level.path} has dimensions {list(dims)}, and not {names}")
        arrays.append(array)
    levels = tuple(_fitted(metadata, arrays))
    attrs, ome = (FrozenMap(one.items()) for one in group)
    return Image(metadata, levels, sink, attrs, ome)


def is_empty_image(sink: Sink) -> bool:
    """Return whether there is an image without elements, as a writer that was killed leaves it."""
    node = read_node(sink)
    if node is None or node.kind != "image":
        return False
    return not any(level.box.size for level in _read_image(sink).levels)


def _fitted(metadata: Multiscale, arrays: Sequence[Array]) -> Iterator[Array]:
    """Yield levels none of which is longer than the finest, as it was when it was opened.

    The image may be growing: the coarser levels were opened later.
    """
    finest = arrays[0].metadata
    dim, factors = stored_axis_order(finest)[0], _factors(metadata)
    for number, array in enumerate(arrays):
        most = array.shape[dim]
        if EVERY_SHARD in own_attributes(finest.attributes) and factors is not None:
            most = _reduced(finest.shape[dim], factors[dim] ** number) or 0
        if array.shape[dim] > most:
            shape = (*array.shape[:dim], most, *array.shape[dim + 1 :])
            yield Array(array.sink, dataclasses.replace(array.metadata, shape=shape))
        else:
            yield array


class _ImageContinuation:
    """Opens an image to append frames."""

    def __init__(self, image: Image) -> None:
        self.image, self.finest = image, image.levels[0]
        self.paths = [level.path for level in image.metadata.levels]
        self.layouts = [FrameLayout.stored(level.metadata) for level in image.levels]
        self.axis_order = self.layouts[0].axis_order
        self.factors, self.method = _recipe(image.metadata)
        self.outer = self.factors[self.axis_order[0]]
        """The factor of the dimension that is appended to."""

    def writer(self, threads: int | None, lock: Lock) -> ImageWriter:
        """Return a writer, once the coarser levels match the finest."""
        with ExitStack() as opened:
            start, levels = self._start(), []
            for number in range(1, len(self.paths)):
                self._drop_partial_windows(number)
                levels.append(
                    opened.enter_context(self._open(number, 1, start // self.outer**number))
                )
            pyramid = None
            if levels:
                pyramid = self._pyramid(levels, start)
                opened.callback(pyramid.close)
                step = self.finest.metadata.chunks[self.axis_order[0]]
                for block in promised_blocks(self.finest, self.layouts[0], step, start):
                    pyramid.append(block)
            finest = opened.enter_context(self._open(0, threads))
            image = self.image
            writer = ImageWriter(image.sink, image.metadata, [finest, *levels], pyramid, lock)
            opened.pop_all()
        return writer

    def _start(self) -> int:
        """Return the row of the finest level from which on the others are computed again.

        Before it, all levels have all of their windows, and these are full.
        """
        rows = [
            layout.promised_elements(level.metadata) // max(1, layout.step_sizes[0])
            for level, layout in zip(self.image.levels, self.layouts)
        ]
        least = min(count * self.outer**number for number, count in enumerate(rows))
        whole = self.outer ** (len(rows) - 1)
        return int(least // whole * whole)

    def _drop_partial_windows(self, number: int) -> None:
        """Let a level promise full windows only: others are computed again."""
        metadata, layout = self.image.levels[number].metadata, self.layouts[number]
        factor, finest = self.outer**number, self.layouts[0]
        rows = finest.promised_elements(self.finest.metadata) // max(1, finest.step_sizes[0])
        most = rows // factor * layout.step_sizes[0]
        length = self.finest.shape[self.axis_order[0]] // factor
        elements = min(layout.promised_elements(metadata), most)
        text = layout.grown_metadata(metadata, elements, length).to_json()
        if text == metadata.to_json():
            return
        sink = self._level(number)
        lock = sink.lock()
        try:
            sink.put("zarr.json", text.encode())
        finally:
            lock.release()

    def _level(self, number: int) -> Sink:
        return member_of(self.image.sink, self.paths[number])

    def _open(self, number: int, threads: int | None, rows: int | None = None) -> Writer:
        return continue_array(self._level(number), threads=threads, rows=rows)

    def _pyramid(self, levels: Sequence[Writer], start: int) -> Pyramid:
        sizes = (None, *self.layouts[0].ordered_shape[1:])
        factors = [self.factors[dim] for dim in self.axis_order]
        return Pyramid(sizes, factors, self.method, self.finest.metadata.dtype, levels, start)


def _factors(metadata: Multiscale) -> Point | None:
    """Return the sizes of windows from a level to the next; None if the metadata do not say."""
    factors = metadata.metadata.get("factors")
    if not isinstance(factors, tuple) or len(factors) != len(metadata.axes):
        return None
    return factors if all(type(f) is int and 0 < f <= MAX_WINDOW for f in factors) else None


def _recipe(metadata: Multiscale) -> tuple[Point, str]:
    """Return the factors and the method by which each level was reduced from the one before."""
    factors, method = _factors(metadata), metadata.type
    if factors is None or method not in METHODS:
        raise WeftError(
            "frames cannot be appended to this image: its metadata do not say how its levels were "
            "reduced",
            hint="metadata.factors and type, as weft.store writes them",
        )
    return factors, method

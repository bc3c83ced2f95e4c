"""`lower`: a mapper and a shape become the fewest writes of sharded buffers."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Literal, TypeAlias

from weft.draw import Drawing, Drawn
from weft.errors import WeftError
from weft.ttmesh.config import Extent, ShardedBufferConfig
from weft.ttmesh.cost import Cost, price
from weft.ttmesh.cut import Cut
from weft.ttmesh.datum import Datum
from weft.ttmesh.fold import Fold, fold
from weft.ttmesh.grid import Ranges, folded, part_of
from weft.ttmesh.mapper import Mapper
from weft.ttmesh.parts import Factor, Loop, Part, parts_of
from weft.ttmesh.picture import draw_lowering
from weft.ttmesh.seed import explain
from weft.ttmesh.staging import Stage, stage_for
from weft.values import Point, as_shape

Uneven: TypeAlias = Literal["refuse", "pad", "ragged"]

LIMIT = 1 << 32
"""The runtime counts the bytes of a shard in 32 bits."""


@dataclass(frozen=True, slots=True)
class Write:
    """One buffer written to the mesh: a contiguous piece of the tensor, folded before `pivot`.

    The rows of the buffer are the dimensions of `view` before the pivot, the columns the others.
    The piece begins at element `source` of the tensor and at `offset` of what each chip holds.
    """

    config: ShardedBufferConfig
    view: Point
    pivot: int
    source: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Family:
    """Writes that differ only in where they begin."""

    first: Write
    loops: tuple[Loop, ...] = ()

    @property
    def count(self) -> int:
        """How many writes there are."""
        return prod(loop.size for loop in self.loops)

    def __iter__(self) -> Iterator[Write]:
        for at in product(*(range(loop.size) for loop in self.loops)):
            source = sum(x * loop.source for x, loop in zip(at, self.loops))
            local = sum(x * loop.local for x, loop in zip(at, self.loops))
            yield replace(
                self.first, source=self.first.source + source, offset=self.first.offset + local
            )


@dataclass(frozen=True, slots=True)
class Lowering(Drawn):
    """A distribution as writes of sharded buffers, the fewest there are.

    >>> from weft.ttmesh import ShardTensor2DMesh
    >>> lowered = lower((1, 1, 8192, 10240), ShardTensor2DMesh((8, 4), dims=[3, 2]), "bfloat16")
    >>> (write,) = lowered.writes
    >>> print(write.config.shard_shape, write.config.mesh_shard_orientation.name, write.pivot)
    2048 x 1280 COL_MAJOR 3
    """

    mapper: Mapper
    shape: Point
    cuts: tuple[Cut, ...]
    """How the dimensions are cut, after padding."""
    datum: Datum
    uneven: Uneven
    families: tuple[Family, ...]
    stage: Stage
    """The other way: a copy on the host that has the shards one after another, in one write."""
    cost: Cost

    @property
    def count(self) -> int:
        """How many writes there are."""
        return sum(family.count for family in self.families)

    @property
    def writes(self) -> tuple[Write, ...]:
        """The writes, straight from the tensor."""
        return tuple(write for family in self.families for write in family)

    @property
    def padded_shape(self) -> Point:
        """The shape that is written: that of the tensor, or with padding more."""
        return tuple(cut.size for cut in self.cuts)

    @property
    def choice(self) -> Literal["writes", "copies"]:
        """What takes less time: writes from the tensor, or a copy first and one write."""
        return self.cost.choice

    def drawing(self) -> Drawing:
        """Which chip holds what."""
        return draw_lowering(self)


def lower(
    shape: Sequence[int],
    mapper: Mapper,
    dtype: str | int | Datum = "float32",
    uneven: Uneven = "refuse",
    strict: bool = False,
    device_shard_layout: Hashable = None,
) -> Lowering:
    """The fewest writes that give each chip what the mapper says.

    Sizes that the mesh does not divide are refused; or padded at the end of the dimension (of each
    group); or, `ragged`, the last shards are short or empty. `strict` lowers exactly what one
    config with the seed's flattening (x, b·z·y) can do, and refuses the rest.

    >>> from weft.ttmesh import ShardTensor2DMesh
    >>> lower((1, 3, 90, 160, 32), ShardTensor2DMesh((2, 4), dims=[2, 3]), "bfloat16").count
    3
    """
    sizes, datum = as_shape(shape), Datum.of(dtype)
    if uneven not in ("refuse", "pad", "ragged"):
        raise WeftError(f"uneven is 'refuse', 'pad' or 'ragged', not {uneven!r}")
    cuts = mapper.cuts(sizes)
    for dim, size in enumerate(sizes):
        if size < 1:
            raise WeftError(f"dimension {dim} of {sizes} is empty: there is nothing to write")
    if uneven == "refuse" or strict:
        for cut in cuts:
            cut.check_even(mapper.cells)
    if uneven == "pad":
        cuts = tuple(cut.padded() for cut in cuts)
    families = tuple(_families(mapper, cuts, datum, strict, device_shard_layout))
    stage = stage_for(cuts, mapper.cells, datum)
    cost = price(cuts, [(f.first.config, f.count) for f in families], stage, datum)
    if strict and cost.fault:
        raise WeftError(cost.fault, hint="without strict it is copied on the host first")
    return Lowering(mapper, sizes, cuts, datum, uneven, families, stage, cost)


def _families(
    mapper: Mapper, cuts: tuple[Cut, ...], datum: Datum, strict: bool, layout: Hashable
) -> Iterator[Family]:
    cells = mapper.cells
    parts = list(parts_of(cuts, cells.shape))
    if strict and (reason := explain(cuts, cells, parts)):
        raise reason
    for part in parts:
        mesh = tuple(high - low for low, high in part.ranges)
        found = fold(part.view, part.factors, mesh, datum.size, strict)
        assert found is not None  # with everything separated there is always one
        yield from _written(part, found, mapper, datum, layout)


def _written(
    part: Part, found: Fold, mapper: Mapper, datum: Datum, layout: Hashable
) -> Iterator[Family]:
    """A family for each coordinate of what is separated on the mesh, looping over the rest."""
    rest = part.factors[len(found.separated) :]
    size = _bytes(part.view, rest, found.whole, datum)
    kept = [factor for factor in found.separated if factor.axis is None]
    loops = (*part.loops, *(Loop(f.size, f.source, f.local) for f in kept))
    view = list(part.view)
    for factor in found.separated:
        view[factor.dim] //= factor.size
    for ranges, source in _meshes(part, found):
        mesh = folded(part_of(mapper.cells, ranges), found.axes)
        config = ShardedBufferConfig(
            mesh, size, found.shard, found.whole, found.orientation, layout
        )
        _check_size(config)
        yield Family(Write(config, tuple(view), found.pivot, source, part.local), loops)


def _meshes(part: Part, found: Fold) -> Iterator[tuple[Ranges, int]]:
    """The parts of the mesh that are written, and where in the tensor each begins."""
    steps = [(f.axis, f.size, f.source) for f in found.separated if f.axis is not None]
    widths = {axis: high - low for axis, (low, high) in enumerate(part.ranges)}
    steps += [(axis, widths[axis], 0) for axis in found.apart]
    for at in product(*(range(size) for _, size, _ in steps)):
        ranges, source = list(part.ranges), part.source
        for x, (axis, _, step) in zip(at, steps):
            low = part.ranges[axis][0] + x
            ranges[axis] = low, low + 1
            source += x * step
        yield tuple(ranges), source


def _bytes(view: Point, factors: Sequence[Factor], whole: Extent, datum: Datum) -> int:
    """The bytes of a buffer; in a block format every shard is made of whole tiles."""
    if not datum.tile:
        return whole.size * datum.size
    local = [1] * len(view)
    for factor in factors:
        local[factor.dim] *= 1 if factor.axis is not None else factor.size
    return datum.bytes_of(tuple(local)) * prod(f.size for f in factors if f.axis is not None)


def _check_size(config: ShardedBufferConfig) -> None:
    shards = config.global_buffer_shape.size // config.physical_shard_shape.size
    size = config.global_buffer_size // shards
    if size >= LIMIT:
        raise WeftError(
            f"a shard of {config.physical_shard_shape} elements is {size} bytes; the runtime "
            f"counts in 32 bits, so that it must be less than {LIMIT}",
            hint="cut the tensor over more chips, or write slices of it",
        )

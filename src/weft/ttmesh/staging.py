"""`Stage`: the shards copied one after another on the host, so that one write delivers them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd, prod

from weft.layout import DeviceMesh
from weft.ttmesh.config import ShardedBufferConfig
from weft.ttmesh.cut import Cut
from weft.ttmesh.datum import Datum
from weft.ttmesh.fold import fold
from weft.ttmesh.grid import folded
from weft.ttmesh.parts import Factor
from weft.values import Point


@dataclass(frozen=True, slots=True)
class Stage:
    """A buffer with a row for each shard, as long as the longest and a whole number of words."""

    config: ShardedBufferConfig
    cells: DeviceMesh
    spread: Point
    """The axes of the distribution along which rows differ, major to minor."""

    def coordinates(self) -> Iterator[Point]:
        """For each row, the first coordinate that gets it."""
        for at in product(*(range(self.cells.shape[axis]) for axis in self.spread)):
            coord = [0] * self.cells.ndim
            for axis, x in zip(self.spread, at):
                coord[axis] = x
            yield tuple(coord)


def stage_for(cuts: Sequence[Cut], cells: DeviceMesh, datum: Datum) -> Stage:
    """The staged form of a distribution: always one write.

    >>> from weft.ttmesh.grid import as_mesh
    >>> cuts = [Cut(0, (8,)), Cut(1, (6,), axes=(1,), ways=(2,))]
    >>> config = stage_for(cuts, as_mesh((2, 2)), Datum.of("uint8")).config
    >>> print(config.global_buffer_shape, config.shard_shape)
    2 x 24 1 x 0
    """
    local = tuple(cut.local(0) for cut in cuts)
    word = 4 // gcd(4, datum.size or 4)
    width = -(-prod(local) // word) * word
    cutting = {axis for cut in cuts for axis in cut.axes if cells.shape[axis] > 1}
    everything = {axis for axis, size in enumerate(cells.shape) if size > 1}
    for axes in (sorted(cutting), sorted(everything)):
        factors = [Factor(cells.shape[axis], axis, 0, 0, 0) for axis in axes]
        factors += [Factor(width, None, 1, 1, 1)] * (width > 1)
        found = fold((1, 1), factors, cells.shape, datum.size)
        if found and not found.separated and not found.apart:
            break
    assert found is not None  # rows for all chips in order are always one config
    rows = prod(cells.shape[axis] for axis in axes)
    size = rows * (datum.bytes_of(local) if datum.tile else width * datum.size)
    mesh = folded(cells, found.axes)
    config = ShardedBufferConfig(mesh, size, found.shard, found.whole, found.orientation)
    return Stage(config, cells, tuple(axes))

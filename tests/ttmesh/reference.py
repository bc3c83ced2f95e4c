"""Mappers and configs by NumPy indexing, and the fewest writes by exhaustive search."""

from itertools import product
from math import prod

import numpy as np

from weft.ttmesh import Shard


def groups_of(placement, size):
    """The sizes of the groups of a dimension."""
    groups = placement.groups
    return (size // groups,) * groups if isinstance(groups, int) else groups


def indices(mapper, shape, coord):
    """Which indices of each dimension the chip at a coordinate holds, in order."""
    indices_of_dims = []
    for dim, size in enumerate(shape):
        block, count, groups = 0, 1, (size,)
        for axis in mapper.order:
            placement = mapper.placements[axis]
            if isinstance(placement, Shard) and placement.dim % len(shape) == dim:
                block = block * mapper.over[axis] + coord[axis]
                count *= mapper.over[axis]
                groups = groups_of(placement, size) if placement.groups != 1 else groups
        start, own = 0, []
        for group in groups:
            step = -(-group // count)
            own += range(start + min(group, block * step), start + min(group, block * step + step))
            start += group
        indices_of_dims.append(own)
    return indices_of_dims


def expected_shards(mapper, array):
    """Return what each chip of the distribution holds."""
    coords = product(*map(range, mapper.over))
    return {coord: array[np.ix_(*indices(mapper, array.shape, coord))] for coord in coords}


def written(whole, shard, by_rows, mesh, data):
    """Return each chip's part of a flat buffer, by the specification; None if it does not fit."""
    (high, wide), (h, w), (rows, columns) = whole, shard, mesh
    tall, broad = h or high, w or wide
    if high % tall or wide % broad:
        return None
    buffer, chips = data.reshape(high, wide), {}
    row = column = 0
    for y in range(0, high, tall):
        for x in range(0, wide, broad):
            piece = buffer[y : y + tall, x : x + broad].ravel()
            if not h and not w:
                return {(r, c): piece for r in range(rows) for c in range(columns)}
            if row >= rows or column >= columns:
                return None
            if not h or not w:
                if by_rows:
                    chips.update({(r, column): piece for r in range(rows)})
                    column += 1
                else:
                    chips.update({(row, c): piece for c in range(columns)})
                    row += 1
                continue
            chips[row, column] = piece
            if by_rows:
                row, column = (row + 1, 0) if column + 1 == columns else (row, column + 1)
            else:
                row, column = (0, column + 1) if row + 1 == rows else (row + 1, column)
    return chips if len(chips) == rows * columns else None


def shards_of_size(whole, size):
    """All extents of a shard of that many elements, 0 for the whole included."""
    high, wide = whole
    for h in (0, *range(1, high + 1)):
        tall = h or high
        if high % tall or size % tall:
            continue
        for w in {0, size // tall}:
            if (w or wide) * tall == size and wide % (w or wide) == 0:
                yield h, w


def single(piece, wanted, mesh, flattenings):
    """Whether one config writes a piece so that each chip gets what is wanted."""
    size = len(next(iter(wanted.values())))
    for whole, by_rows in product(flattenings, (True, False)):
        for shard in shards_of_size(whole, size):
            got = written(whole, shard, by_rows, mesh, piece)
            if got and all(np.array_equal(got[chip], wanted[chip]) for chip in wanted):
                return True
    return False


def fewest(shape, mapper):
    """The fewest writes over all leading prefixes, pivots, shards and orientations."""
    data = np.arange(prod(shape))
    chips = {
        chip: part.ravel() for chip, part in expected_shards(mapper, data.reshape(shape)).items()
    }
    for lead in range(len(shape) + 1):
        count = prod(shape[:lead])
        size = len(chips[0, 0])
        if (lead and shape[lead - 1] == 1) or size % count:
            continue
        part = size // count
        rest = shape[lead:]
        flattenings = [(prod(rest[:p]), prod(rest[p:])) for p in range(len(rest) + 1)]
        pieces = data.reshape(count, -1)
        if all(
            single(
                pieces[n],
                {chip: has[n * part : (n + 1) * part] for chip, has in chips.items()},
                mapper.over,
                flattenings,
            )
            for n in range(count)
        ):
            return count
    return None


def fewest_ranges(shape, mapper):
    """The fewest writes over all contiguous ranges of the tensor, folded anywhere."""
    data = np.arange(prod(shape))
    chips = {
        chip: part.ravel() for chip, part in expected_shards(mapper, data.reshape(shape)).items()
    }
    best = {0: 0}
    for stop in range(1, len(data) + 1):
        starts = [start for start in best if fits(data, start, stop, chips)]
        reached = [best[start] + 1 for start in starts]
        if reached:
            best[stop] = min(reached)
    return best[len(data)]


def fits(data, start, stop, chips):
    """Whether a range is one write to a part of the mesh: each chip gets a run, at one place."""
    held = {chip: np.flatnonzero((has >= start) & (has < stop)) for chip, has in chips.items()}
    runs = {chip: run for chip, run in held.items() if len(run)}
    first, *rest = runs.values()
    if any(not np.array_equal(first, run) for run in rest):
        return False
    rows, columns = ({chip[n] for chip in runs} for n in (0, 1))
    part = len(rows), len(columns)
    top, left = min(rows), min(columns)
    whole = part == (max(rows) - top + 1, max(columns) - left + 1)
    if not whole or len(runs) != prod(part) or first[-1] - first[0] + 1 != len(first):
        return False
    size = stop - start
    flattenings = [(h, size // h) for h in range(1, size + 1) if size % h == 0]
    wanted = {
        (row - top, column - left): chips[row, column][first[0] : first[-1] + 1]
        for row, column in runs
    }
    return single(data[start:stop], wanted, part, flattenings)

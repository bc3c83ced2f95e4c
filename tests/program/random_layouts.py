"""Random layouts: axes, and parts of axes, cut dimensions, number parts, or do nothing."""

from weft.program import Cells, Layout
from weft.program.layout_rule import join_parts
from weft.space import BlockGrid, Digit, Projection

SHAPES = [(), (1,), (2,), (3,), (4,), (6,), (2, 2), (2, 3), (4, 2), (2, 1, 2)]
SIZES = [0, 1, 2, 3, 4, 5, 8]
MONOIDS = ("sum", "max")


def pick(rng, items):
    return items[int(rng.integers(len(items)))]


def random_cells(rng):
    shape = pick(rng, SHAPES)
    cells = Cells(shape)
    if rng.random() < 0.3:
        return Cells(shape, tuple(int(n) for n in rng.permutation(cells.size)))
    return cells


def random_digits(rng, shape):
    """Digits that are apart, in a random order."""
    found = []
    for dim, size in enumerate(shape):
        if size in (4, 6) and rng.random() < 0.5:
            found += [Digit(dim, 2, size // 2, 1), Digit(dim, 1, 2, 1)]
        else:
            found.append(Digit(dim, 1, size, 1))
    return [found[int(n)] for n in rng.permutation(len(found))]


def random_shape(rng):
    return tuple(int(n) for n in rng.choice(SIZES, int(rng.integers(0, 4))))


def cut(cells, shape, cuts, parts=(), image=None, array=None):
    """The layout that digits give; they number blocks major to minor."""
    numbered, counts = [], []
    for digits in cuts:
        stride, found = 1, []
        for digit in reversed(digits):
            found.insert(0, digit._replace(stride=stride))
            stride *= digit.radix
        numbered.append(tuple(found))
        counts.append(stride)
    grid = BlockGrid.cut(shape, counts)
    return Layout(cells, array or shape, grid, tuple(numbered), join_parts(parts), image)


def random_layout(rng, cells, shape, monoids=MONOIDS, overlap=False):
    """A layout that holds an array in full; with `overlap`, maybe one that does not."""
    cuts, parts, monoid = [[] for _ in shape], [], pick(rng, monoids)
    digits = random_digits(rng, cells.shape)
    if overlap and digits and rng.random() < 0.5:
        digits.append(pick(rng, digits))
    for digit in digits:
        chance = rng.random()
        if chance < 0.5 and shape:
            pick(rng, cuts).append(digit)
        elif chance < 0.75 and all(digit != other for other, _ in parts):
            parts.append((digit, monoid))
            if len(monoids) > 1 and rng.random() < 0.3:
                monoid = pick(rng, monoids)
    layout = cut(cells, shape, cuts, parts)
    if rng.random() < 0.7:
        return layout
    counts = layout.grid.counts
    points = [tuple(sorted(rng.integers(0, n + 1, k - 1).tolist())) for n, k in zip(shape, counts)]
    grid = BlockGrid.cut(shape, counts, points)
    return Layout(cells, shape, grid, layout.cuts, layout.parts)


def random_image(rng, cells):
    """The boxes of an array that cells need whose index space is cut: windows, steps, offsets."""
    space, rank = random_shape(rng), int(rng.integers(0, 3))
    index = random_layout(rng, cells, space)
    array = tuple(int(n) for n in rng.choice(SIZES, rank))
    projection = Projection(
        [[int(n) for n in rng.integers(-1, 3, len(space))] for _ in range(rank)],
        offset=[int(n) for n in rng.integers(-2, 3, rank)],
        shape=[int(n) for n in rng.integers(1, 4, rank)],
        index_ndim=len(space),
    )
    return Layout(cells, array, index.grid, index.cuts, (), projection)

"""Random index expressions, as people write them for NumPy."""

import numpy as np


def random_slice(rng, size):
    """A slice with any of its parts missing, negative, or beyond the end."""

    def bound():
        return None if rng.random() < 0.4 else int(rng.integers(-size - 2, size + 3))

    step = None if rng.random() < 0.5 else int(rng.choice([1, 2, 3, 7, -1, -2, -5]))
    return slice(bound(), bound(), step)


def random_integers(rng, size, shape):
    """Indices along a dimension, from either end."""
    return rng.integers(-size, size, shape) if size else np.zeros(0, np.intp)


def basic(rng, shape):
    """Integers, slices, an ellipsis and new axes."""
    items = []
    for size in shape[: int(rng.integers(0, len(shape) + 1))]:
        if size and rng.random() < 0.35:
            one = int(rng.integers(-size, size))
            items.append(one if rng.random() < 0.7 else np.int64(one))
        else:
            items.append(random_slice(rng, size))
    return with_more(rng, items, shape)


def with_more(rng, items, shape):
    """The items with an ellipsis and new axes between them, or a single one by itself."""
    if rng.random() < 0.4:
        place = int(rng.integers(len(items) + 1))
        items = [*items[:place], ..., *items[place:]]
        tail = [random_slice(rng, n) for n in shape[len(items) - 1 :]]
        items += tail if rng.random() < 0.3 else []
    while rng.random() < 0.2:
        items.insert(int(rng.integers(len(items) + 1)), None)
    return items[0] if len(items) == 1 and rng.random() < 0.7 else tuple(items)


def advanced(rng, shape):
    """Arrays of integers that broadcast, masks of one or more dimensions, and basic indices."""
    common = tuple(int(n) for n in rng.integers(1, 4, int(rng.integers(0, 3))))
    dims, items = list(shape), []
    while dims:
        kind, size = rng.random(), dims[0]
        if kind < 0.35:
            lead = int(rng.integers(0, len(common) + 1))
            own = tuple(1 if rng.random() < 0.3 else n for n in common[lead:])
            array = random_integers(rng, size, own) if size else random_slice(rng, 0)
            items.append(
                array.tolist() if size and array.ndim == 1 and rng.random() < 0.5 else array
            )
            dims = dims[1:]
        elif kind < 0.45 and not common:
            count = int(rng.integers(1, min(3, len(dims)) + 1))
            items.append(rng.random(dims[:count]) < 0.4)
            dims, common = dims[count:], None
        elif kind < 0.6 and size:
            items.append(int(rng.integers(-size, size)))
            dims = dims[1:]
        elif kind < 0.7:
            break
        else:
            items.append(random_slice(rng, size))
            dims = dims[1:]
        common = () if common is None else common
    if dims and rng.random() < 0.3:
        items.append(...)
    elif items and rng.random() < 0.15:
        items.insert(int(rng.integers(len(items) + 1)), ... if not dims else None)
    while rng.random() < 0.15:
        items.insert(int(rng.integers(len(items) + 1)), None)
    if rng.random() < 0.03:
        items.insert(int(rng.integers(len(items) + 1)), bool(rng.random() < 0.7))
    return items[0] if len(items) == 1 and rng.random() < 0.7 else tuple(items)


def random_index(rng, shape):
    """An index that NumPy takes for an array of some shape."""
    while True:
        index = basic(rng, shape) if rng.random() < 0.5 else advanced(rng, shape)
        try:
            np.broadcast_to(np.int8(0), shape)[index]
        except IndexError:
            continue
        return index


def outer(rng, shape):
    """An orthogonal index: of each dimension an integer, a slice, a list or a mask."""
    items = []
    for size in shape:
        kind = rng.random()
        if kind < 0.3 and size:
            items.append(random_integers(rng, size, int(rng.integers(0, 5))))
        elif kind < 0.5:
            items.append(rng.random(size) < 0.5)
        elif kind < 0.65 and size:
            items.append(int(rng.integers(-size, size)))
        else:
            items.append(random_slice(rng, size))
    return tuple(items)


def take_outer(array, items):
    """What an orthogonal index selects, one dimension after the other."""
    axis = 0
    for item in items:
        array = array[(slice(None),) * axis + (item,)]
        axis += not isinstance(item, int)
    return array[()]

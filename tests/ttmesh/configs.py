"""Random distributions: meshes, mappers and shapes that fit them."""

from math import prod

from weft.ttmesh import Mapper, Shard


def placements(random, ndim, axes, interleaved=True):
    """A placement for each axis: mostly cuts, some copies, some interleaved."""
    drawn = []
    for _ in range(axes):
        dim = random.randrange(ndim)
        groups = random.choice([1] * 6 + [2, 3]) if interleaved else 1
        sign = random.choice([0, 0, ndim])
        drawn.append(random.choice([None, *[Shard(dim - sign, groups)] * 3]))
    dims = [each.dim % ndim for each in drawn if each is not None]
    for n, each in enumerate(drawn):  # axes that cut one dimension agree on its groups
        if each is not None and dims.count(each.dim % ndim) > 1:
            drawn[n] = Shard(each.dim % ndim)
    return drawn


def even_shape(random, mapper, ndim, most=4096):
    """A shape that the mesh divides; often with sizes of 1, and often with none."""
    usual = random.choice([[1, 1, 2, 3, 4, 5], [2, 3], [1, 2, 3]])
    for extents in (usual,) * 20 + ([1],):
        shape = [random.choice(extents) for _ in range(ndim)]
        for axis, each in enumerate(mapper.placements):
            if isinstance(each, Shard):
                groups = each.groups if isinstance(each.groups, int) else 1
                shape[each.dim] *= mapper.over[axis] * groups
        if prod(shape) <= most:
            break
    return tuple(shape)


def config(random, interleaved=True, most=4096):
    """A mapper on rows and columns, and a shape of rank 1 to 5."""
    ndim = random.randint(1, 5)
    mesh = random.choice([1, 2, 3, 4]), random.choice([1, 2, 3, 4, 6, 8])
    order = random.choice([(0, 1), (1, 0)])
    mapper = Mapper(mesh, placements(random, ndim, 2, interleaved), order=order)
    return mapper, even_shape(random, mapper, ndim, most)


def shortened(random, mapper, shape):
    """The shape with some of its cut dimensions smaller, so that shards are short or empty."""
    sizes = list(shape)
    for cut in mapper.sharded_dims(shape):
        if cut.count > 1 and len(cut.groups) == 1:
            sizes[cut.dim] = max(1, sizes[cut.dim] - random.choice([0, 1, 1, 2, 3]))
    return tuple(sizes)


def short_config(random):
    """A mapper on rows and columns, and a shape that does not fit evenly."""
    mapper, shape = config(random, most=40)
    return mapper, shortened(random, mapper, shape)


def any_config(random, most=4096):
    """A mapper on a mesh of 1 to 4 axes, whole or in part, and a shape that may not fit evenly."""
    axes, ndim = random.randint(1, 4), random.randint(1, 4)
    mesh = tuple(random.choice([1, 2, 2, 3, 4]) for _ in range(axes))
    over, offset = mesh, None
    if random.random() < 0.3:
        over = tuple(random.randint(1, size) for size in mesh)
        offset = tuple(random.randint(0, size - part) for size, part in zip(mesh, over))
    order = random.sample(range(axes), axes)
    mapper = Mapper(mesh, placements(random, ndim, axes), over, offset, order)
    shape = even_shape(random, mapper, ndim, most)
    return mapper, shape if random.random() < 0.5 else shortened(random, mapper, shape)


def unequal(random):
    """An interleaved dimension whose groups are not alike, as queries, keys and values are."""
    mesh = random.choice([(1, 4), (2, 2), (2, 3)])
    ndim = random.randint(1, 4)
    dim, axis = random.randrange(ndim), random.randrange(2)
    groups = tuple(mesh[axis] * random.choice([1, 1, 2, 4]) for _ in range(random.randint(2, 4)))
    each = [None, None]
    each[axis] = Shard(dim, groups)
    other = random.choice([None, random.randrange(ndim)])
    each[1 - axis] = None if other == dim else other
    shape = [random.choice([1, 2, 3]) for _ in range(ndim)]
    shape[dim] = sum(groups)
    if each[1 - axis] is not None:
        shape[other] *= mesh[1 - axis]
    return Mapper(mesh, each), tuple(shape)

"""Random tensors on random meshes: cut anywhere, uneven, replicated, partial."""

import numpy as np

from weft import DeviceMesh, DimSpec, ShardingSpec, SubAxis
from weft.lang.monoid import identity
from weft.runtime.tensor import Tensor


def random_mesh(rng):
    shape = [int(n) for n in rng.choice([1, 2, 2, 3, 4], rng.integers(1, 4))]
    while np.prod(shape) > 12:
        shape.pop()
    return DeviceMesh("m", shape, [f"a{n}" for n in range(len(shape))])


def pieces(rng, mesh):
    """The axes of a mesh, some of them in two parts, in a random order."""
    found = []
    for name, size in zip(mesh.axis_names, mesh.shape):
        if size == 4 and rng.random() < 0.4:
            found += [SubAxis(name, 1, 2), SubAxis(name, 2, 2)]
        else:
            found.append(name)
    return [found[int(n)] for n in rng.permutation(len(found))]


def with_points(rng, spec, shape):
    """The sharding, one time in three with random points at which its dimensions are cut."""
    (rng,) = rng.spawn(1)
    if rng.random() < 0.7:
        return spec
    dims = []
    for dim, count, size in zip(spec.dim_specs, spec.grid, shape):
        points = sorted(rng.integers(0, size + 1, count - 1).tolist())
        keeps = dim.is_open or rng.random() < 0.3
        dims.append(dim if keeps else DimSpec(dim.axes, False, dim.priority, points))
    return ShardingSpec(spec.mesh, dims, spec.replicated_axes, spec.partial)


def random_spec(rng, mesh, shape, monoids=("sum",)):
    """A sharding that gives each axis to a dimension, to a monoid, or to neither."""
    ndim = len(shape)
    dims, partial = [[] for _ in range(ndim)], {}
    monoid = str(rng.choice(monoids)) if monoids else ""
    for axis in pieces(rng, mesh):
        chance = rng.random()
        if chance < 0.55 and ndim:
            dims[int(rng.integers(0, ndim))].append(axis)
        elif chance < 0.7 and monoid:
            partial[axis] = monoid
    return with_points(
        rng, ShardingSpec(mesh, [DimSpec(axes) for axes in dims], (), partial), shape
    )


def parts_of(rng, array, spec):
    """The shards of an array: where it is partial, every element lies in one part at random."""
    mesh, monoid = spec.mesh, next(iter(spec.partial.values()), "")
    digits = [mesh.digit(axis) for axis in spec.partial]
    count = int(np.prod([digit.radix for digit in digits], dtype=int))
    where = rng.integers(0, count, array.shape)
    shards = []
    for cell in mesh.cells():
        box, part = spec.region(array.shape, cell).slices(), 0
        for digit in digits:
            part = part * digit.radix + cell[digit.dim] // digit.divisor % digit.radix
        shard = array[box]
        if monoid:
            nothing = np.asarray(identity(np, monoid, array.dtype), array.dtype)
            shard = np.where(where[box] == part, shard, nothing)
        shards.append(shard)
    return shards


def scattered(rng, array, mesh):
    """A tensor with the values of an array that lies on a mesh in some way, or on none."""
    array = np.asarray(array)
    if rng.random() < 0.15:
        return Tensor(array)
    monoids = () if array.dtype.kind in "bc" else ("sum", "max", "min")
    monoids = (*monoids, "prod") if array.dtype.kind in "iu" else monoids
    spec = random_spec(rng, mesh, array.shape, monoids)
    return Tensor.of_shards(parts_of(rng, array, spec), spec, array.shape)

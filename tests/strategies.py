"""Random boxes, projections, meshes and shardings, small enough to check point by point."""

from math import prod

from hypothesis import assume
from hypothesis import strategies as st

from weft import DeviceMesh, DimSpec, Projection, ShardingSpec, SubAxis, ZRange
from weft.values import MONOIDS

OWN = [name for name, definition in MONOIDS.items() if definition is None]

small = st.integers(-6, 6)
extents = st.integers(0, 5)


@st.composite
def boxes(draw, ndim=None, extent=extents):
    """A box near the origin, sometimes empty."""
    ndim = draw(st.integers(0, 4)) if ndim is None else ndim
    start = tuple(draw(small) for _ in range(ndim))
    return ZRange(start, tuple(a + draw(extent) for a in start))


@st.composite
def box_pairs(draw):
    """Two boxes of one rank."""
    ndim = draw(st.integers(0, 4))
    return draw(boxes(ndim)), draw(boxes(ndim))


@st.composite
def partitions(draw, ndim=None):
    """A box and disjoint boxes that cover it: cut at random, then shuffled."""
    ndim = draw(st.integers(0, 4)) if ndim is None else ndim
    target = draw(boxes(ndim, st.integers(1, 8)))
    parts = [target]
    for _ in range(draw(st.integers(0, 8)) if ndim else 0):
        part = parts.pop(draw(st.integers(0, len(parts) - 1)))
        dim = draw(st.integers(0, ndim - 1))
        parts += part.split(dim, [draw(st.integers(part.start[dim], part.stop[dim]))])
    return target, draw(st.permutations(parts))


@st.composite
def projections(draw, index_ndim=None, ndim=None):
    """A projection with coefficients of either sign."""
    index_ndim = draw(st.integers(0, 3)) if index_ndim is None else index_ndim
    ndim = draw(st.integers(0, 3)) if ndim is None else ndim
    coefficient = st.sampled_from([-3, -2, -1, 0, 0, 0, 1, 1, 2, 3])
    matrix = [[draw(coefficient) for _ in range(index_ndim)] for _ in range(ndim)]
    offset = [draw(small) for _ in range(ndim)]
    window = [draw(st.integers(1, 4)) for _ in range(ndim)]
    return Projection(matrix, offset, window, index_ndim)


@st.composite
def meshes(draw, max_rank=5, max_size=512):
    """A mesh of rank 0 to 5, sometimes with devices in another order."""
    shape = draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), max_size=max_rank))
    while prod(shape) > max_size:
        shape.pop()
    ids = draw(st.permutations(range(prod(shape)))) if draw(st.booleans()) else None
    return DeviceMesh(draw(names), shape, [f"a{n}" for n in range(len(shape))], ids)


names = st.one_of(
    st.sampled_from(["m", "cluster", "mesh_2.x$y", "mesh-2"]),
    st.text(st.characters(exclude_characters='"\\', categories=["L", "N", "P", "Zs"]), min_size=1)
    .filter(str.isprintable)
    .filter(lambda text: ":(" not in text),
)


@st.composite
def axis_parts(draw, mesh):
    """All axes of a mesh, some split into sub-axes, in random order."""
    parts = []
    for name, size in zip(mesh.axis_names, mesh.shape):
        before = 1
        pieces = []
        while size > before and draw(st.booleans()):
            rest = size // before
            piece = draw(st.sampled_from([n for n in range(2, rest + 1) if rest % n == 0]))
            pieces.append(SubAxis(name, before, piece))
            before *= piece
        parts += pieces or [name]
    return draw(st.permutations(parts))


@st.composite
def specs(draw, mesh=None, ndim=None):
    """A sharding with sub-axes, open dimensions, priorities, replicated and unreduced axes."""
    mesh = draw(meshes()) if mesh is None else mesh
    ndim = draw(st.integers(0, 4)) if ndim is None else ndim
    uses = [*range(ndim), "replicated", "partial", "free"]
    used = {use: [] for use in uses}
    for axis in draw(axis_parts(mesh)):
        used[draw(st.sampled_from(uses))].append(axis)
    dims = [DimSpec(used[d], draw(st.booleans()), draw(st.integers(0, 2))) for d in range(ndim)]
    partial = {axis: draw(st.sampled_from(OWN)) for axis in used["partial"]}
    return ShardingSpec(mesh, dims, used["replicated"], partial)


@st.composite
def with_cut_points(draw, spec, shape):
    """The sharding with points at which some of its dimensions are cut."""
    dims = []
    for dim, count, n in zip(spec.dim_specs, spec.grid, shape):
        if count <= 16 and draw(st.booleans()):
            points = draw(st.lists(st.integers(0, n), min_size=count - 1, max_size=count - 1))
            dims.append(DimSpec(dim.axes, False, dim.priority, sorted(points)))
        else:
            dims.append(dim)
    return ShardingSpec(spec.mesh, dims, spec.replicated_axes, spec.partial)


@st.composite
def sharded_shapes(draw):
    """A sharding and the shape of an array it may be used for, even or not, empty or not."""
    spec = draw(specs())
    size = st.one_of(st.integers(0, 12), st.integers(0, 3).map(lambda n: n * 8))
    shape = tuple(draw(size) for _ in range(spec.ndim))
    assume(prod(shape) <= 4096)
    return draw(with_cut_points(spec, shape)) if draw(st.booleans()) else spec, shape

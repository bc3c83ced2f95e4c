"""The storage that is chosen for outputs, compared with brute force."""

from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import DeviceMesh, DimSpec, Plan, ShardingSpec, WeftError, ZRange, propagate, trace
from weft.plan import Chunking, Storage, choose_storage
from weft.plan.chunking import choose, lengths
from weft.plan.stored import blocks

MESH = DeviceMesh("m", (2, 3), ("x", "y"))
CUTS = ((), ("x",), ("y",), ("x", "y"))


@st.composite
def outputs(draw):
    """An array of any rank and any size, cut by axes of a mesh."""
    shape = tuple(draw(st.lists(st.integers(1, 12), max_size=3)))
    free, dims = {"x", "y"}, []
    for _ in shape:
        axes = draw(st.sampled_from([cut for cut in CUTS if free >= set(cut)]))
        free -= set(axes)
        dims.append(DimSpec(axes))
    return ShardingSpec(MESH, dims), shape


@st.composite
def chunkings(draw, shape):
    low = draw(st.integers(0, 100))
    corners = st.tuples(*[st.integers(0, 9)] * len(shape))
    extents = st.tuples(*[st.integers(0, 5)] * len(shape))
    boxes = st.builds(ZRange.of, extents, corners)
    readers = draw(st.lists(boxes, max_size=2))
    return Chunking(
        (low, low + draw(st.integers(8, 200))),
        draw(st.integers(8, 600)),
        draw(st.integers(1, 12)),
        readers,
    )


def planes(shape):
    """Every plane across every dimension."""
    whole = ZRange.of(shape)
    return [plane for dim, size in enumerate(shape) for plane in whole.split(dim, range(size))]


def allowed(spec, shape, storage):
    """Whether every cell writes whole shards."""
    return all(storage.aligned(box) for box in blocks(spec, shape, "y") if box)


@given(outputs(), st.data())
def test_storage_equals_brute_force(output, data):
    (spec, shape), itemsize = output, data.draw(st.sampled_from([1, 4]))
    chunking = data.draw(chunkings(shape))
    found = choose(spec, shape, itemsize, chunking)
    assert allowed(spec, shape, found)
    boxes = [box & found.space for box in chunking.readers]
    boxes = [box for box in boxes if box] or planes(shape)
    low, high = chunking.chunk_bytes
    high = min(high, chunking.shard_bytes)

    def size(chunk):
        return prod(chunk) * itemsize

    chunks = [
        chunk
        for chunk in product(*(every_length(spec, shape, dim) for dim in range(len(shape))))
        if size(chunk) <= high and allowed(spec, shape, Storage(shape, chunk, itemsize=itemsize))
    ]
    floor = low if max(map(size, chunks)) >= low else max(map(size, chunks))
    chunks = [chunk for chunk in chunks if size(chunk) >= floor]
    assert found.chunk in chunks
    best = min(Storage(shape, chunk, itemsize=itemsize).amplification(boxes) for chunk in chunks)
    assert found.amplification(boxes) == pytest.approx(best)

    per = [s // c for s, c in zip(found.shard, found.chunk)]
    limit = min(chunking.shard_chunks, chunking.shard_bytes // size(found.chunk))
    assert prod(per) <= limit
    counts = [max(1, -(-n // c)) for n, c in zip(shape, found.chunk)]
    ways = [way for way in product(*(range(1, k + 1) for k in counts)) if prod(way) <= limit]
    shards = [tuple(c * n for c, n in zip(found.chunk, way)) for way in ways]
    every = [Storage(shape, found.chunk, shard, itemsize) for shard in shards]
    fewest = min(len(list(one.shards())) for one in every if allowed(spec, shape, one))
    assert len(list(found.shards())) == fewest


def every_length(spec, shape, dim):
    """Any length where cells cut; where they do not, those that are looked at."""
    is_cut = spec.shard_shape(shape)[dim] < shape[dim]
    return range(1, shape[dim] + 1) if is_cut else lengths(shape[dim], 0)


def planned(shape, sharding):
    mesh = DeviceMesh("m", (4,), ("x",))
    graph = trace(lambda x: x + x, shape, meshes=[mesh], shardings={"x": f"<@m, {sharding}>"})
    return Plan.of(propagate(graph))


def test_chunks_of_a_volume_are_nearly_cubes():
    plan = planned((512, 512, 512), '[{"x"}, {}, {}]')
    found = choose_storage(plan, "add")
    assert found.chunk == (64, 64, 64)  # 1 MiB of float32
    assert prod(found.shard) * 4 <= 1 << 30
    assert found.shard == (128, 512, 512)


def test_chunks_follow_their_readers():
    plan = planned((512, 512, 512), '[{"x"}, {}, {}]')
    slices = [ZRange((z, 0, 0), (z + 1, 512, 512)) for z in (0, 100, 511)]
    found = choose_storage(plan, "add", Chunking(readers=slices))
    assert found.amplification(slices) == 1.0
    assert found.chunk[0] == 1


def test_the_last_shard_may_be_short():
    plan = planned((1001, 100), '[{"x"}, {}]')
    found = choose_storage(plan, "add", Chunking((1 << 10, 1 << 12)))
    assert 251 % found.shard[0] == 0  # 1001 in four boxes of 251, the last shorter
    assert allowed(plan.outputs[0], (1001, 100), found)


def test_empty_arrays_have_storage():
    spec = ShardingSpec(MESH, [DimSpec(("x",)), DimSpec()])
    assert choose(spec, (0, 8), 4, Chunking()).chunk == (1, 8)
    assert choose(ShardingSpec(MESH, []), (), 4, Chunking()) == Storage((), (), itemsize=4)


def test_small_arrays_are_one_chunk():
    assert choose_storage(planned((8, 8), "[{}, {}]"), "add") == Storage((8, 8), (8, 8), itemsize=4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Chunking((4, 2)), "chunk_bytes are the fewest and the most, got 4 and 2"),
        (lambda: Chunking((0, 0)), "chunk_bytes are the fewest and the most, got 0 and 0"),
        (lambda: Chunking(shard_bytes=0), "shard_bytes is 0; a shard has at least one chunk"),
        (lambda: Chunking(shard_chunks=0), "shard_chunks is 0; a shard has at least one chunk"),
        (lambda: Chunking(readers=[3]), "readers must be a list of ZRange"),
        (lambda: Chunking(ratio=0), "the ratio of storage is 0"),
        (
            lambda: choose_storage(planned((8, 8), "[{}, {}]"), "add", Chunking((1, 2))),
            "a chunk of at most 2 B cannot hold an element of 4 B",
        ),
        (
            lambda: choose_storage(planned((8, 8), "[{}, {}]"), "x"),
            "there is no output 'x' to choose storage for",
        ),
        (
            lambda: choose_storage(
                planned((8, 8), "[{}, {}]"), "add", Chunking(readers=[ZRange.of((1,))])
            ),
            "a reader's box has 1 dimension where 2 are expected",
        ),
    ],
)
def test_invalid_chunkings_are_refused(call, message):
    with pytest.raises(WeftError, match=message):
        call()

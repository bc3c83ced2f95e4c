"""The scatter kernel and the aggregation, on the host, beside NumPy."""

import numpy as np
import pytest
from tests.store.cuda.host import Buffer, Host, empty, needs_compiler, u32, u64

from weft.store.chunk_layout import FrameLayout
from weft.store.cuda.scatter import (
    moves_of,
    scatter_source,
    stored_levels,
    tile_order,
    width_of,
)
from weft.store.scatter import Scatter

PART = 1024


def random_tiling(rng):
    rank = int(rng.integers(1, 5))
    shape = [int(n) for n in rng.integers(1, 20, rank)]
    if rng.random() < 0.5:
        shape[-1] = 8 * int(rng.integers(1, 5))
    chunks = [int(rng.integers(1, n + 2)) for n in shape]
    if rng.random() < 0.5:
        chunks[-1] = 8
    axis_order = tuple(range(rank))
    if rng.random() < 0.4:
        axis_order = tuple(map(int, rng.permutation(rank)))
    for level in range(int(rng.integers(0, rank))):
        chunks[axis_order[level]] = 1
    shards = [c * int(rng.integers(1, 3)) for c in chunks]
    order = tuple(map(int, rng.permutation(rank))) if rng.random() < 0.2 else ()
    return FrameLayout(tuple(shape), tuple(chunks), tuple(shards), axis_order=axis_order), order


@pytest.mark.parametrize("seed", range(12))
def test_rows_are_scattered_as_by_numpy(tmp_path, seed):
    """Rows in two launches, and fill value behind them; tiles in the order of their shards."""
    needs_compiler()
    rng = np.random.default_rng(seed)
    layout, order = random_tiling(rng)
    dtype = np.dtype(str(rng.choice(["u1", "<u2", "<u4", "<u8", "<c16"])))
    swaps = bool(rng.integers(2))
    half = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    source = scatter_source(layout, order, dtype.itemsize, half if swaps else 1)
    host = Host(tmp_path, "scatter.cu", source)
    fill = dtype.type(rng.integers(0, 2))
    rows = layout.ordered_chunks[layout.buffered_axis]
    size = layout.ordered_shape[layout.buffered_axis]
    there = int(rng.integers(1, min(rows, size) + 1))
    unit = layout.step_sizes[layout.buffered_axis]
    values = (rng.integers(0, 3, there * unit) * (rng.random() < 0.8)).astype(dtype)
    scatter = Scatter(layout, dtype, fill)
    tiles = scatter.tiles()
    scatter.add(tiles, scatter.blocks())
    for span in layout.slabs(0, there * unit):
        below = layout.ordered_shape[span.level + 1 :]
        scatter.put(tiles, span, values.reshape(span.steps, *below))
    wanted = tiles.whole[list(tile_order(layout))]
    pool, stored = empty(wanted.size, dtype), Buffer(np.zeros(layout.tiles_per_epoch, "u4"))
    numbers = Buffer(np.array(tile_order(layout), "u4"))
    low, high = np.frombuffer(np.asarray(fill).tobytes() * (16 // dtype.itemsize), "u8").tolist()
    cut = int(rng.integers(0, there + 1))
    for first, last, end in ((0, cut, cut), (cut, there, rows)):
        begin, stop = moves_of(layout, order, dtype.itemsize, first, end)
        parts = -(-(stop - begin) // PART)
        host.launch(
            "weft_scatter", layout.tiles_per_epoch * parts,
            Buffer(values[first * unit : last * unit]), pool, stored, numbers, u64(low), u64(high),
            u32(first), u32(last), u32(end), u32(begin), u32(stop), u32(parts),
        )  # fmt: skip
    axes = [0, *(1 + dim for dim in (order or range(len(layout.chunks))))]
    wanted_stored = [not bool((tile == fill).all()) for tile in wanted]
    wanted = np.ascontiguousarray(wanted.transpose(axes))
    wanted = wanted.byteswap() if swaps else wanted
    assert np.array_equal(pool.array, wanted.reshape(-1)), (layout, order, dtype)
    assert stored.array.astype(bool).tolist() == wanted_stored


def test_wide_moves_where_lines_are_contiguous():
    def width(shape, chunks, itemsize, order=(), axis_order=()):
        return width_of(FrameLayout(shape, chunks, chunks, axis_order=axis_order), order, itemsize)

    assert width((None, 2048, 2048), (16, 128, 128), 2) == 16
    assert width((None, 10, 2049), (4, 5, 128), 2) == 2
    assert width((None, 10, 2052), (4, 5, 128), 2) == 8
    assert width((None, 10, 64), (4, 5, 4), 1) == 4
    assert width((None, 10, 64), (4, 5, 64), 2, order=(2, 1, 0)) == 2
    assert width((None, 10, 64), (4, 5, 64), 4, axis_order=(0, 2, 1)) == 4
    assert width((None,), (64,), 4) == 4
    layout = FrameLayout((None, 8, 64), (4, 8, 64), (4, 8, 64))
    assert stored_levels(layout, ()) == [0, 1, 2]
    assert moves_of(layout, (), 2, 1, 3) == (64, 192)
    assert moves_of(layout, (2, 1, 0), 2, 1, 3) == (0, 2048)


@pytest.mark.parametrize("count", [1, 7, 256, 257, 1000])
def test_chunks_are_put_one_behind_the_other(tmp_path, count):
    needs_compiler()
    host = Host(tmp_path, "aggregate.cu")
    rng = np.random.default_rng(count)
    stride, part = 112, 64
    chunks = rng.integers(0, 255, (count, stride)).astype("u1")
    stored = rng.integers(0, 2, count).astype("u4")
    for fixed, extra in [(0, 0), (stride, 0), (0, 4), (stride, 4)]:
        given = rng.integers(1, stride + 1, count).astype("u8")
        wanted = np.where(stored, fixed or given, 0)
        sizes, offsets, placed = Buffer(given), empty(count, "u8"), empty(count + 1, "u8")
        order = rng.permutation(count).astype("u4")
        host.launch(
            "weft_offsets", 1, Buffer(stored), Buffer(order), sizes, offsets, placed, u64(count),
            u64(fixed), u64(extra),
        )  # fmt: skip
        assert sizes.array.tolist() == wanted.tolist()
        assert placed.array.tolist() == [
            0, *np.cumsum(np.where(wanted, wanted + extra, 0)[order]).tolist(),
        ]  # fmt: skip
        assert offsets.array[order].tolist() == placed.array[:-1].tolist()
        out = empty(int(placed.array[-1]), "u1", shift=3)
        parts = -(-stride // part)
        host.launch(
            "weft_gather", count * parts, Buffer(chunks), u64(stride), sizes, offsets, out,
            u32(parts), u64(part),
        )  # fmt: skip
        room = np.full(extra, 0xC3, "u1")
        made = [[*c[:n], *room[: extra * (n > 0)]] for c, n in zip(chunks[order], wanted[order])]
        assert out.array.tolist() == np.concatenate(made).tolist()

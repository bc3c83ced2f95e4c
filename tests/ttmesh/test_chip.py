"""Pages of a tensor in the banks and cores of a chip: each page has one address."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import WeftError
from weft.ttmesh.buffer import Extent, ShardOrientation
from weft.ttmesh.chip import (
    ChipLayout,
    Core,
    CoreGrid,
    CoreRange,
    Interleaved,
    Layout,
    NdSharded,
    Scheme,
    Sharded,
    page_grid,
)
from weft.ttmesh.formats import DataType

ROW, COL = ShardOrientation.ROW_MAJOR, ShardOrientation.COL_MAJOR
KIND = DataType.BFLOAT16


@st.composite
def layouts(draw):
    """Layouts of every kind that fit."""
    tiled = draw(st.booleans())
    unit = 32 if tiled else 1
    shape = draw(st.lists(st.integers(1, 3), max_size=2))
    shape += [draw(st.integers(1, 5 * unit)) for _ in range(draw(st.integers(0, 2)))]
    layout = Layout.TILE if tiled else Layout.ROW_MAJOR
    turn = draw(st.sampled_from([ROW, COL]))
    whole = page_grid(ChipLayout(shape, KIND, Layout.TILE, Interleaved(1))).counts
    whole = (1,) * (2 - len(shape)) + (whole if tiled else tuple(shape))
    height, width = int(np.prod(whole[:-1])), whole[-1]
    rows, columns = draw(st.integers(1, height)), draw(st.integers(1, width))
    grid = CoreGrid.of(draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    match draw(st.sampled_from(["interleaved", "height", "width", "block", "nd"])):
        case "interleaved":
            memory = Interleaved(draw(st.integers(1, 9)))
        case "height":
            rows = -(-height // min(len(grid), -(-height // rows)))
            memory = Sharded(Scheme.HEIGHT, extent(rows, width, unit), grid, turn)
        case "width":
            columns = -(-width // min(len(grid), -(-width // columns)))
            memory = Sharded(Scheme.WIDTH, extent(height, columns, unit), grid, turn)
        case "block":
            (cores,) = grid.ranges
            room = (cores.rows, cores.columns) if turn is ROW else (cores.columns, cores.rows)
            sides = [max(n, -(-m // r)) for n, m, r in zip((rows, columns), (height, width), room)]
            memory = Sharded(Scheme.BLOCK, extent(*sides, unit), grid, turn)
        case _:
            lead = draw(st.lists(st.integers(1, 3), max_size=2))
            memory = NdSharded((*lead, rows * unit, columns * unit), grid, turn)
    return ChipLayout(shape, KIND, layout, memory, draw(st.sampled_from([1, 16, 32])))


def extent(rows, columns, unit):
    return Extent(height=rows * unit, width=columns * unit)


@given(layouts())
def test_every_page_has_one_place_and_page_at_inverts_it(layout):
    places = [layout.place(page) for page in range(layout.page_count)]
    assert len(set(places)) == layout.page_count
    for page, place in enumerate(places):
        assert place.bank in layout.banks
        assert place.offset % layout.aligned_page_bytes == 0
        assert place.offset + layout.aligned_page_bytes <= layout.bank_bytes
        assert layout.page_at(*place) == page
        assert layout.page_at(place.bank, place.offset + layout.page_bytes - 1) == page
    listed = [(p, (bank, o)) for bank in layout.banks for p, o in layout.pages_in(bank)]
    assert sorted(listed) == sorted((p, tuple(place)) for p, place in enumerate(places))
    assert layout.page_at(layout.banks[0], layout.bank_bytes) is None


@given(layouts())
def test_places_equal_those_of_an_array_cut_with_numpy(layout):
    if isinstance(layout.memory, Interleaved):
        return
    pages = np.arange(layout.page_count).reshape(
        (1,) * (2 - len(layout.shape)) + page_grid(layout).counts
    )
    page = layout.page_shape
    match layout.memory:
        case Sharded(shard=shard):
            sides = (shard.height // page.height, shard.width // page.width)
        case NdSharded(shard=shape):
            sides = (*shape[:-2], shape[-2] // page.height, shape[-1] // page.width)
    lead = max(len(sides) - pages.ndim, 0)
    keep = len(sides) - 1
    pages = pages.reshape((1,) * lead + pages.shape)
    pages = pages.reshape(-1, *pages.shape[pages.ndim - keep :])
    shards = [range(0, n, side) for n, side in zip(pages.shape, sides)]
    cores = layout.memory.grid.cores(layout.memory.orientation)
    for number, corner in enumerate(np.ndindex(*map(len, shards))):
        start = [r[i] for r, i in zip(shards, corner)]
        slot, core = divmod(number, len(cores))
        core = cores[core]
        if getattr(layout.memory, "scheme", None) is Scheme.BLOCK:
            down, along = corner
            core = Core(along, down) if layout.memory.orientation is ROW else Core(down, along)
        for inside in np.ndindex(*sides):
            at = tuple(a + b for a, b in zip(start, inside))
            if all(x < n for x, n in zip(at, pages.shape)):
                first = slot * int(np.prod(sides)) + np.ravel_multi_index(inside, sides)
                expected = (core, int(first) * layout.aligned_page_bytes)
                assert tuple(layout.place(int(pages[at]))) == expected


@given(layouts(), st.data())
def test_an_element_lies_in_the_page_that_covers_it(layout, data):
    at = [data.draw(st.integers(0, n - 1)) for n in layout.shape]
    *lead, row, column = [0] * (2 - len(at)) + at
    page = layout.page_shape
    spot = (*lead, row // page.height, column // page.width)
    counts = (1,) * (2 - len(at)) + page_grid(layout).counts
    assert layout.page_of(at) == np.ravel_multi_index(spot, counts)


def test_interleaved_pages_go_round_the_banks():
    layout = ChipLayout((2, 96, 64), DataType.BFLOAT8_B, Layout.TILE, Interleaved(5))
    assert layout.page_count == 12
    assert layout.place(7) == (2, 1088)
    rows = ChipLayout((3, 5), DataType.UINT8, Layout.ROW_MAJOR, Interleaved(2), alignment=32)
    assert [tuple(rows.place(page)) for page in range(3)] == [(0, 0), (1, 0), (0, 32)]


def test_col_major_transposes_blocks():
    shape, shard = (128, 128), Extent(height=64, width=32)
    along = Sharded(Scheme.BLOCK, shard, CoreGrid.of(4, 2))
    down = Sharded(Scheme.BLOCK, shard, CoreGrid.of(2, 4), COL)
    assert ChipLayout(shape, KIND, Layout.TILE, along).place(3).bank == Core(3, 0)
    assert ChipLayout(shape, KIND, Layout.TILE, down).place(3).bank == Core(0, 3)


def test_nd_shards_go_round_the_cores():
    memory = NdSharded((1, 64, 64), CoreGrid.of(3, 1))
    layout = ChipLayout((2, 128, 128), KIND, Layout.TILE, memory)
    banks = [layout.place(page).bank.x for page in range(layout.page_count)]
    assert banks[:16] == [0, 0, 1, 1, 0, 0, 1, 1, 2, 2, 0, 0, 2, 2, 0, 0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Interleaved(0), "interleaved memory needs at least one bank"),
        (lambda: CoreGrid([]), "a grid needs at least one range of cores"),
        (
            lambda: CoreRange((2, 0), (1, 0)),
            "a range of cores ends at x=1, before x=2",
        ),
        (
            lambda: CoreGrid([CoreRange((0, 0), (2, 2)), CoreRange((1, 1), (3, 3))]),
            "ranges of cores (0, 0)-(2, 2) and (1, 1)-(3, 3) overlap",
        ),
        (
            lambda: ChipLayout((4,), DataType.BFLOAT4_B, Layout.ROW_MAJOR, Interleaved(1)),
            "bfloat4_b shares exponents within tiles: its layout is TILE",
        ),
        (
            lambda: ChipLayout((4,), KIND, Layout.TILE, Interleaved(1), alignment=0),
            "alignment is a number of bytes, 1 or more",
        ),
        (
            lambda: tiled(Scheme.HEIGHT, (32, 32), CoreGrid.of(4, 1)),
            "the width of a HEIGHT_SHARDED shard of bfloat16[1, 1, 128, 64] in TILE is 32; "
            "the tensor's is 64, and it is not cut",
        ),
        (
            lambda: tiled(Scheme.HEIGHT, (32, 64), CoreGrid.of(3, 1)),
            "the height of bfloat16[1, 1, 128, 64] in TILE makes 4 shards of 32 x 64, "
            "and the grid has 3 cores",
        ),
        (
            lambda: tiled(Scheme.WIDTH, (96, 32), CoreGrid.of(3, 1)),
            "the height of a WIDTH_SHARDED shard of bfloat16[1, 1, 128, 64] in TILE is 96; "
            "the tensor's is 128, and it is not cut",
        ),
        (
            lambda: tiled(Scheme.BLOCK, (64, 32), CoreGrid.of(1, 2)),
            "the width of bfloat16[1, 1, 128, 64] in TILE makes 2 shards of 64 x 32, and "
            "ROW_MAJOR the grid has 1 columns of cores for them",
        ),
        (
            lambda: tiled(
                Scheme.BLOCK,
                (64, 32),
                CoreGrid([CoreRange((0, 0), (1, 1)), CoreRange((4, 0), (4, 0))]),
            ),
            "blocks need one rectangle of cores: (0, 0)-(1, 1) + (4, 0)-(4, 0)",
        ),
        (
            lambda: tiled(Scheme.BLOCK, (64, 40), CoreGrid.of(2, 2)),
            "dimension 1 of shard (64, 40) of bfloat16[1, 1, 128, 64] in TILE is not a whole "
            "number of tiles: 40 = 32 x 1 + 8",
        ),
        (
            lambda: tiled(Scheme.BLOCK, (0, 32), CoreGrid.of(2, 2)),
            "dimension 0 of shard (0, 32) of bfloat16[1, 1, 128, 64] in TILE is 0",
        ),
        (
            lambda: ChipLayout((4,), KIND, Layout.TILE, NdSharded((), CoreGrid.of(1, 1))),
            "a shard of bfloat16[4] in TILE needs a shape",
        ),
        (
            lambda: ChipLayout(
                (5,),
                KIND,
                Layout.ROW_MAJOR,
                Sharded(Scheme.HEIGHT, Extent(height=2, width=5), CoreGrid.of(1, 1)),
            ),
            "the height of a shard of bfloat16[5] in ROW_MAJOR is 2; its one row has height 1",
        ),
        (lambda: plain().place(4), "no page 4: uint8[4, 8] in ROW_MAJOR has 4"),
        (lambda: plain().page_at(2, 0), "bank 2 holds nothing of uint8[4, 8] in ROW_MAJOR"),
        (lambda: plain().page_at(Core(0, 1), 0), "core (0, 1) holds nothing of uint8[4, 8] in R"),
        (lambda: plain().page_of((0, 8)), "dimension 1 of size 8 has no coordinate 8"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(WeftError) as refused:
        make()
    assert str(refused.value).startswith(message)


def tiled(scheme, shard, grid):
    height, width = shard
    memory = Sharded(scheme, Extent(height=height, width=width), grid)
    return ChipLayout((1, 1, 128, 64), KIND, Layout.TILE, memory)


def plain():
    return ChipLayout((4, 8), DataType.UINT8, Layout.ROW_MAJOR, Interleaved(2))

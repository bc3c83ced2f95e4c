"""Packings: laws for all kinds, the cuts of seed 002, views of other shapes, what is refused."""

import itertools
import pickle
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ckks.packings import packings

from weft.ckks.packing import Packing
from weft.errors import WeftError


def numbered(shape):
    return np.arange(1.0, prod(shape) + 1).reshape(shape)


@given(packings())
def test_every_element_has_a_place_of_its_own_and_comes_back(packing):
    array = numbered(packing.shape)
    rows = packing.pack(array)
    assert len(rows) == packing.ciphertexts
    assert all(row.shape == (packing.slots,) and row.dtype == np.float64 for row in rows)
    assert (packing.unpack(rows) == array).all()
    copies = packing.slots // packing.period
    assert sum(np.count_nonzero(row) for row in rows) == array.size * copies
    for row in rows:
        assert (row.reshape(copies, -1) == row[: packing.period]).all()
    places = {packing.place(point) for point in itertools.product(*map(range, packing.shape))}
    assert len(places) == array.size


@given(packings())
def test_digits_tables_and_inverse_tables_say_the_same(packing):
    array, rows = numbered(packing.shape), packing.pack(numbered(packing.shape))
    for point in itertools.product(*map(range, packing.shape)):
        ciphertext, slot = packing.place(point)
        lifted = [point[d] // div % radix for d, div, radix, _ in packing.digits]
        block = [x // n for x, n in zip(lifted, packing.extents)]
        assert np.ravel_multi_index(block, packing.spec.grid) == ciphertext
        inside = [x % n * s for x, n, s in zip(lifted, packing.extents, packing.strides)]
        assert sum(inside) == slot < packing.span <= packing.period
        assert rows[ciphertext][slot] == array[point]
    numbers = packing.numbers()
    for number, row in enumerate(rows):
        assert (row == numbers[number] + 1).all()


@given(packings())
def test_packings_are_values(packing):
    again = pickle.loads(pickle.dumps(packing))
    assert again == packing
    assert hash(again) == hash(packing)
    assert str(packing.spec) in str(packing)
    packing.drawing()


@st.composite
def views(draw):
    """A packing and another shape of as many elements."""
    packing = draw(packings())
    size, shape = prod(packing.shape), []
    while size > 1:
        shape.append(draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0])))
        size //= shape[-1]
    return packing, draw(st.sampled_from([tuple(shape), (prod(shape),), (1, *packing.shape)]))


@given(views())
def test_a_view_has_the_same_slots(view):
    packing, shape = view
    seen = packing.reshaped(shape)
    if seen is None:
        return
    array = numbered(packing.shape)
    assert (np.array(seen.pack(array.reshape(shape))) == packing.pack(array)).all()
    assert seen.shape == shape


@pytest.mark.parametrize(
    ("packing", "shape"),
    [
        (Packing.tiled((8, 7, 7), 512), (392,)),
        (Packing.tiled((8, 7, 7), 128), (392,)),
        (Packing.tiled((8, 7, 7), 128), (1, 8, 49)),
        (Packing.multiplexed((8, 7, 7), 512, 2), (392,)),
        (Packing.multiplexed((7, 6, 6), 512, 2), (252,)),
        (Packing.phased((3, 6, 6), 64, 2), (3, 36)),
        (Packing.vector(392, 512), (8, 7, 7)),
        (Packing.dense((1, 4, 6), 32), (2, 3, 4)),
    ],
)
def test_flattening_and_splitting_are_views(packing, shape):
    seen = packing.reshaped(shape)
    array = numbered(packing.shape)
    assert (np.array(seen.pack(array.reshape(shape))) == packing.pack(array)).all()


def test_views_that_digits_do_not_allow():
    assert Packing.phased((1, 3, 5), 64, 2).reshaped((15,)) is None  # 5 columns are no 3 x 2
    assert Packing.tiled((3, 5), 64).reshaped((5, 3)) is None
    assert Packing.dense((2, 3), 8).reshaped((7,)) is None


@pytest.mark.parametrize(
    ("packing", "grid", "strides"),
    [
        (Packing.tiled((2048, 7, 7), 1 << 15), (4, 1, 1), (64, 8, 1)),
        (Packing.tiled((64, 56, 56), 1 << 15), (8, 1, 1), (4096, 64, 1)),
        (Packing.tiled((3, 224, 224), 1 << 15), (3, 2, 1), (32768, 256, 1)),
        (Packing.dense((3, 224, 224), 1 << 15), (3, 2, 1), (25088, 224, 1)),
        (Packing.tiled((1, 64, 56, 56), 1 << 15), (1, 8, 1, 1), (32768, 4096, 64, 1)),
        (Packing.phased((3, 224, 224), 1 << 15, 2), (3, 1, 2, 1, 1), (32768, 128, 32768, 1, 16384)),
        (Packing.multiplexed((128, 28, 28), 1 << 15, 2), (4, 1, 1, 1, 1), (4096, 64, 1, 128, 2)),
        (Packing.dense((5, 100), 32), (5, 4), (25, 1)),
    ],
)
def test_channels_are_cut_first_then_rows_then_columns(packing, grid, strides):
    assert (packing.spec.grid, packing.strides) == (grid, strides)


def test_channels_are_cut_by_y_and_rows_by_z_as_in_example_1_of_seed_002():
    packing = Packing.tiled((3, 224, 224), 1 << 15)
    assert str(packing.spec) == '<@ct, [{"y"}, {"z"}, {"w"}]>'
    assert str(packing.spec.mesh) == '@ct = <["y"=3, "z"=2, "w"=1]>'
    assert [str(box) for box in packing.spec.boxes(packing.shape)][:2] == [
        "[0:1, 0:112, 0:224]",
        "[0:1, 112:224, 0:224]",
    ]


def test_multiplexed_channels_stand_in_the_gaps():
    array = np.arange(8.0).reshape(8, 1, 1) * np.ones((8, 2, 2))
    (row,) = Packing.multiplexed((8, 2, 2), 32, 2).pack(array)
    expected = np.tile([[0, 1], [2, 3]], (2, 2))
    assert (row.reshape(2, 4, 4) == [expected, expected + 4]).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Packing.dense((0, 3), 8), "a tensor of shape [0, 3] has no elements to pack"),
        (lambda: Packing.dense((3,), 6), "a period of 6 does not divide 6 slots, a power of two"),
        (
            lambda: Packing.dense((3,), 8, 3),
            "a period of 3 does not divide 8 slots",
        ),
        (lambda: Packing.vector(3, 8, 0), "stride is 0; it must be at least 1"),
        (lambda: Packing.phased((3, 3), 8, 2), "a tensor of shape [3, 3] has no channels, rows"),
        (lambda: Packing.phased((3, 3, 3), 8, 0), "phases are 0 and 0; they must be at least 1"),
        (lambda: Packing.multiplexed((3, 3, 3), 8, 0), "gap is 0; it must be at least 1"),
        (lambda: Packing.tiled((3, 9, 9), 256, 8), "9 rows or columns do not fit a side of 8"),
        (
            lambda: Packing.multiplexed((64, 9, 9), 16, 8),
            "a tensor of shape [64, 9, 9] needs at least 64 slots; there are 16",
        ),
        (
            lambda: Packing.dense((2, 3), 8).pack([1, 2]),
            "an array of shape [2] is packed as [2, 3]",
        ),
        (lambda: Packing.dense((2,), 8).unpack([]), "0 rows of slots are given for 1 ciphertext"),
        (lambda: Packing.dense((2,), 8).place((2,)), "a tensor of shape [2] has no element [2]"),
        (
            lambda: Packing((9,), [(2, 4)], Packing.dense((2, 4), 8).spec, (4, 1), 16),
            "dimension 0 of size 9 does not fit digits of 2 x 4",
        ),
        (
            lambda: Packing((2, 4), [(2,), (4,)], Packing.dense((2, 4), 8).spec, (3, 1), 16),
            "a stride of 3 slots overlaps the 4 slots in use",
        ),
        (
            lambda: Packing((2, 4), [(2,), (4,)], Packing.dense((2, 4), 8).spec, (5, 1), 8),
            "9 slots are needed; there are 8",
        ),
    ],
)
def test_refusals(make, message):
    with pytest.raises(WeftError) as caught:
        make()
    assert str(caught.value).startswith(message)


def test_gaps_are_kept_where_there_are_no_channels_for_them():
    packing = Packing.multiplexed((1, 2, 2), 16, 2)
    (row,) = packing.pack([[[1, 2], [3, 4]]])
    assert row.reshape(4, 4).tolist() == [[1, 0, 2, 0], [0, 0, 0, 0], [3, 0, 4, 0], [0, 0, 0, 0]]

"""Digits of coordinates against NumPy's unravel and ravel."""

from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weft.space import Digit, digits_of, matching, weigh


@st.composite
def splits(draw):
    every = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
    return draw(st.lists(every, max_size=3))


@given(splits(), st.data())
def test_digits_with_permuted_strides_are_unravel_permute_ravel(radices, data):
    flat = [radix for split in radices for radix in split]
    order = data.draw(st.permutations(range(len(flat))))
    strides, stride = [0] * len(flat), 1
    for digit in reversed(order):
        strides[digit], stride = stride, stride * flat[digit]
    shape = [prod(split) for split in radices]
    moved = np.arange(prod(shape)).reshape(flat).transpose(order).ravel()
    where = np.empty_like(moved)
    where[moved] = np.arange(moved.size)
    digits = digits_of(radices, strides)
    assert weigh(shape, digits) == where.tolist()
    for point, address in zip(np.ndindex(*shape), where.tolist(), strict=True):
        assert address == sum(digit.of(point) * digit.stride for digit in digits)


@given(st.lists(st.integers(1, 6), max_size=3), st.data())
def test_matching_finds_the_coordinates_with_those_digits(shape, data):
    fixed = []
    for dim, size in enumerate(shape):
        rest = size
        while rest > 1 and data.draw(st.booleans()):
            radix = data.draw(st.sampled_from([n for n in range(2, rest + 1) if rest % n == 0]))
            rest //= radix
            if data.draw(st.booleans()):
                fixed.append((Digit(dim, rest, radix, 1), data.draw(st.integers(0, radix - 1))))
    found = list(matching(shape, data.draw(st.permutations(fixed))))
    assert found == [
        x for x in np.ndindex(*shape) if all(x[d.dim] // d.divisor % d.radix == v for d, v in fixed)
    ]

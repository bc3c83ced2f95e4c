"""Liftings against NumPy's unravel and ravel, and seed 000's shard permutation by hand."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import Lifting, WeftError
from weft.space import Digit, matching

sizes = st.integers(1, 7)


@st.composite
def tilings(draw):
    ndim = draw(st.integers(0, 3))
    shape = [draw(sizes) for _ in range(ndim)]
    levels = draw(st.integers(0, 2))
    return shape, [[draw(st.integers(1, 4)) for _ in range(ndim)] for _ in range(levels)]


@st.composite
def liftings(draw):
    splits, shape = [], []
    for _ in range(draw(st.integers(0, 3))):
        split = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
        splits.append(split)
        shape.append(draw(st.integers(0, prod(split))))
    return Lifting(shape, splits, draw(st.permutations(range(sum(map(len, splits))))))


@given(liftings())
def test_addresses_are_unravel_permute_ravel(lift):
    radices = [radix for split in lift.radices for radix in split]
    padded = [prod(split) for split in lift.radices]
    cube = np.arange(prod(padded)).reshape(padded)
    # An element of the padded array, seen through the digits in their new order.
    moved = cube.reshape(radices).transpose(lift.order).ravel()
    where = np.empty_like(moved)
    where[moved] = np.arange(moved.size)
    kept = where.reshape(padded)[tuple(slice(n) for n in lift.shape)]
    assert lift.addresses() == kept.ravel().tolist()
    points = list(np.ndindex(*lift.shape))
    assert [lift.address(point) for point in points] == lift.addresses()
    assert [lift.point(address) for address in lift.addresses()] == points
    unused = set(range(lift.capacity)) - set(lift.addresses())
    assert all(lift.point(address) is None for address in unused)


@given(liftings())
def test_the_digits_are_all_a_kernel_needs(lift):
    for point, address in zip(np.ndindex(*lift.shape), lift.addresses()):
        assert address == sum(
            int(point[d.dim]) // d.divisor % d.radix * d.stride for d in lift.digits
        )
    assert tuple(d.stride for d in lift.digits) == lift.strides


@given(liftings())
def test_the_permutation_is_a_bijection_in_the_order_of_addresses(lift):
    places = lift.permutation()
    assert sorted(places) == list(range(prod(lift.shape)))
    addresses = lift.addresses()
    assert sorted(addresses) == [a for _, a in sorted(zip(places, addresses))]
    if lift.capacity == prod(lift.shape):
        assert places == addresses


@given(tilings())
def test_tiles_of_tiles_by_hand(case):
    shape, blocks = case
    lift = Lifting.tiled(shape, *blocks)
    for point, address in zip(np.ndindex(*shape), lift.addresses()):
        digits, counts = [], []
        rest, left = list(point), list(shape)
        for block in blocks:  # innermost first
            digits.insert(0, [x % n for x, n in zip(rest, block)])
            counts.insert(0, block)
            rest = [x // n for x, n in zip(rest, block)]
            left = [-(-n // m) for n, m in zip(left, block)]
        digits.insert(0, rest)
        counts.insert(0, left)
        flat = [x for level in digits for x in level]
        sides = [n for level in counts for n in level]
        assert address == (np.ravel_multi_index(flat, sides) if flat else 0)


def seed_permutation(tile_count, tiles_per_shard):
    """P of seed 000, as its text computes it."""
    shard_count = [-(-n // t) for n, t in zip(tile_count, tiles_per_shard)]
    found = []
    for i in range(prod(tile_count)):
        t = np.unravel_index(i, tile_count)
        s = [int(x) // n for x, n in zip(t, tiles_per_shard)]
        w = [int(x) % n for x, n in zip(t, tiles_per_shard)]
        found.append(int(np.ravel_multi_index(s + w, shard_count + list(tiles_per_shard))))
    return found


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=1, max_size=3))
def test_the_shard_permutation_of_seed_000(sides):
    tile_count, tiles_per_shard = zip(*sides)
    lift = Lifting.tiled(tile_count, tiles_per_shard)
    by_hand = seed_permutation(tile_count, tiles_per_shard)
    assert lift.addresses() == by_hand
    order = sorted(range(len(by_hand)), key=by_hand.__getitem__)
    assert [lift.permutation()[i] for i in order] == list(range(len(by_hand)))
    # Tiles of one shard stand together, so that each shard is one contiguous write.
    inner = prod(tiles_per_shard)
    shards = [by_hand[i] // inner for i in order]
    assert shards == sorted(shards)


def test_the_typical_configuration_of_seed_000():
    """768 tiles in an epoch, 4 x 4 x 1 of them in a shard: 48 shards, or 12 with 4 epochs each."""
    lift = Lifting.tiled((16, 16, 3), (4, 4, 1))
    assert lift.capacity == 768
    assert sorted(lift.permutation()) == list(range(768))
    assert lift.permutation()[:5] == [0, 16, 32, 1, 17]


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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Lifting((5,), [(2, 2)], (0, 1)), "dimension 0 of size 5 does not fit digits of"),
        (lambda: Lifting((2,), [(2, 0)], (0, 1)), "dimension 0 of size 2 does not fit digits of"),
        (lambda: Lifting((2, 2), [(2,)], (0,)), "shape has 2 dimensions where 1 are expected"),
        (lambda: Lifting((2,), [(2,)], (1,)), "order (1,) is not a permutation of 1 digits"),
        (lambda: Lifting((-2,), [(2,)], (0,)), "dimension 0 has the negative size -2"),
        (lambda: Lifting.tiled((4,), (0,)), "block 0 is (0,); each extent must be at least 1"),
        (lambda: Lifting.tiled((4,), (1, 1)), "block 0 has 2 dimensions where 1 are expected"),
        (lambda: Lifting.tiled((4,)).address((4,)), "dimension 0 of size 4 has no coordinate 4"),
        (lambda: Lifting.tiled((4,)).address(()), "point has 0 dimensions where 1 are expected"),
        (lambda: Lifting.tiled((4,)).point(4), "no address 4 among 4"),
        (lambda: Lifting.tiled((4,)).point(1.5), "address must be an integer: 1.5"),
        (lambda: Lifting((2,), [()], ()), "dimension 0 of size 2 does not fit digits of 1"),
    ],
)
def test_what_bad_input_gets(make, message):
    with pytest.raises(WeftError) as caught:
        make()
    assert str(caught.value).startswith(message)

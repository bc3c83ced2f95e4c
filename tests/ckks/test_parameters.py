"""Parameters of CKKS: primes, scales that do not drift, the bounds of security, and sizes."""

import pickle
from itertools import pairwise, product
from math import log2, prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import WeftError
from weft.ckks.parameters import STANDARD, Parameters, is_prime

SIZES = st.tuples(
    st.integers(10, 16).map(lambda power: 1 << power),
    st.integers(0, 12),
    st.integers(30, 50),
    st.integers(51, 59),
    st.integers(59, 60),
)


def test_primes_are_those_of_a_sieve():
    composite = {n for a in range(2, 100) for n in range(2 * a, 5000, a)}
    assert [n for n in range(5000) if is_prime(n)] == sorted(set(range(2, 5000)) - composite)
    assert not is_prime(3215031751)  # passes the bases 2, 3, 5 and 7
    assert not is_prime(3825123056546413051)  # and this one every base up to 23
    assert is_prime(18446744073709551557)  # the largest below 2^64


@given(sizes=SIZES)
def test_the_modulus_has_the_bits_that_were_asked_for(sizes):
    ring, depth, scale_bits, first_bits, special_bits = sizes
    parameters = Parameters(*sizes, security=None)
    primes = (*parameters.primes, parameters.special)
    assert len(set(primes)) == depth + 2
    assert all(is_prime(prime) and prime % (2 * ring) == 1 for prime in primes)
    assert prod(primes).bit_length() == parameters.modulus_bits
    assert parameters.modulus_bits == first_bits + depth * scale_bits + special_bits
    assert max(primes).bit_length() <= 60  # what SEAL takes
    assert parameters.room(depth) == pytest.approx(log2(prod(parameters.primes)))


@given(sizes=SIZES)
def test_a_scale_is_the_square_of_the_one_above_by_its_prime(sizes):
    parameters = Parameters(*sizes, security=None)
    rising = list(zip(parameters.primes, parameters.scales))
    assert rising[-1][1] == 2.0**parameters.scale_bits
    for (_, low), (prime, high) in pairwise(rising):
        assert high * high / prime == low


@pytest.mark.parametrize(("ring", "depth"), [(8192, 2), (16384, 8), (32768, 19), (65536, 40)])
def test_scales_do_not_drift(ring, depth):
    scales = Parameters(ring, depth).scales
    assert max(abs(scale / 2**40 - 1) for scale in scales) < 1e-4


@given(sizes=SIZES, data=st.data())
def test_every_path_to_a_level_ends_at_one_scale(sizes, data):
    parameters = Parameters(*sizes, security=None)
    start = data.draw(st.integers(0, parameters.depth))
    for stop in range(start):
        one = parameters.adjusting_scale(start, stop)
        lowered = parameters.scales[start] * one / parameters.primes[stop + 1]
        assert lowered == pytest.approx(parameters.scales[stop], rel=1e-15)


def test_equal_parameters_are_equal_values():
    one = Parameters(8192, 2)
    assert one == Parameters(ring=8192, depth=2, security=128) != Parameters(8192, 1)
    assert len({one, Parameters(8192, 2)}) == 1
    assert pickle.loads(pickle.dumps(one)) == one
    assert one.slots == 4096


def test_parameters_print_in_one_line():
    assert str(
        Parameters(16384, 6, security=192, first_bits=42, special_bits=60, scale_bits=30)
    ) == (
        "CKKS N=16384: 8192 slots, depth 6, 42 + 6 x 30 + 60 = 282 bits of 305 at 192-bit security"
    )
    assert str(Parameters(1024, 1, security=None)) == (
        "CKKS N=1024: 512 slots, depth 1, 50 + 1 x 40 + 60 = 150 bits, security is not checked"
    )
    assert "\n" not in repr(Parameters(8192, 2))


def sizes_of(total):
    """A depth and bits of primes that make `total` bits and could be one more; None if none do."""
    for depth, scale in product(range(62), range(50, 20, -1)):
        first = (total - depth * scale) // 2
        special = total - depth * scale - first
        if scale < first <= special < 60:
            return depth, scale, first, special
    return None


@pytest.mark.parametrize("security", STANDARD)
@pytest.mark.parametrize("ring", STANDARD[128])
def test_the_bound_of_security_is_met_to_the_bit(security, ring):
    most = STANDARD[security][ring]
    sizes = sizes_of(most)
    if sizes is not None:
        assert Parameters(ring, *sizes, security).modulus_bits == most
        with pytest.raises(WeftError, match=f"holds {most} bits .* needs {most + 1}"):
            Parameters(ring, *sizes[:3], sizes[3] + 1, security)
    else:
        assert most < 21 + 21
        with pytest.raises(WeftError, match=f"N={ring} holds {most} bits at {security}-bit"):
            Parameters(ring, 0, 20, 21, 21, security)


@given(
    depth=st.integers(0, 45),
    slots=st.integers(0, 40000),
    security=st.sampled_from(sorted(STANDARD)),
)
def test_the_smallest_ring_that_fits(depth, slots, security):
    bits = 110 + 40 * depth
    rings = [n for n, most in STANDARD[security].items() if n // 2 >= slots and bits <= most]
    if rings:
        assert Parameters.fitting(depth, slots, security).ring == min(rings)
    else:
        with pytest.raises(WeftError, match=r"slots do not fit|holds .* bits at"):
            Parameters.fitting(depth, slots, security)


def hint_of(refused):
    return "".join(refused.value.__notes__).removeprefix("hint: ")


@pytest.mark.parametrize(
    ("make", "message", "hint"),
    [
        (
            lambda: Parameters(8192, 6),
            "N=8192 holds 218 bits at 128-bit security; depth 6 at 40 bits needs 350",
            "N=16384 would fit, or depth 2",
        ),
        (
            lambda: Parameters(65536, 41),
            "N=65536 holds 1747 bits at 128-bit security; depth 41 at 40 bits needs 1750",
            "depth 40 would fit",
        ),
        (
            lambda: Parameters(1024, 2),
            "N=1024 holds 27 bits at 128-bit security; depth 2 at 40 bits needs 190",
            "N=8192 would fit",
        ),
        (
            lambda: Parameters.fitting(62, security=256),
            "N=65536 holds 929 bits at 256-bit security; depth 62 at 40 bits needs 2590",
            "depth 20 would fit",
        ),
        (
            lambda: Parameters(1024, 0, 20, 21, 60),
            "N=1024 holds 27 bits at 128-bit security; depth 0 at 20 bits needs 81",
            "N=4096 would fit",
        ),
        (
            lambda: Parameters(1024, 62, 59, 60, 60),
            "N=1024 holds 27 bits at 128-bit security; depth 62 at 59 bits needs 3778",
            "take primes of fewer bits",
        ),
        (
            lambda: Parameters(8192, 2, security=100),
            "there is no table for 100-bit security",
            "there are 128, 192, 256",
        ),
        (
            lambda: Parameters(512, 0),
            "the security tables do not have N=512: they are for N=1024 to 65536",
            "security=None checks nothing, for tests",
        ),
        (
            lambda: Parameters(65536, 20, scale_bits=20, security=None),
            "there are too few primes of 20 bits that are 1 modulo 2N = 131072",
            "take more bits, or a smaller ring",
        ),
        (lambda: Parameters(5000, 1), "the ring N=5000 is not a power of two from 8 to 131072", ""),
        (lambda: Parameters(1 << 20, 1), "the ring N=1048576 is not a power of two from 8 to", ""),
        (lambda: Parameters(8192, 63), "depth 63 needs 65 primes; SEAL takes 64", ""),
        (lambda: Parameters(8192, -1), "depth is -1; it cannot be negative", ""),
        (lambda: Parameters(8192, "2"), "depth must be an integer: '2'", ""),
        (
            lambda: Parameters(8192, 2, scale_bits=61),
            "scale_bits is 61; a prime has 20 to 60 bits",
            "",
        ),
        (
            lambda: Parameters(8192, 2, scale_bits=50),
            "the first prime has 50 bits and the scale 50: there is no room for values at level 0",
            "",
        ),
        (
            lambda: Parameters(8192, 2, special_bits=45),
            "the special prime has 45 bits, the first 50: it must be the largest, or keys add "
            "noise",
            "",
        ),
        (
            lambda: Parameters.fitting(1, slots=40000),
            "40000 slots do not fit: N=65536 has 32768",
            "",
        ),
        (
            lambda: Parameters(8192, 2).room(3),
            "there is no level 3: the levels go from 0 to the depth, 2",
            "",
        ),
        (
            lambda: Parameters(8192, 2).adjusting_scale(1, 1),
            "a ciphertext cannot go from level 1 to 1: the depth is 2, and levels only fall",
            "",
        ),
    ],
)
def test_refusals(make, message, hint):
    with pytest.raises(WeftError) as refused:
        make()
    assert str(refused.value).startswith(message)
    assert hint_of(refused) == hint if hint else not hasattr(refused.value, "__notes__")


def test_sizes_in_bytes():
    parameters = Parameters(8192, 2)
    assert parameters.ciphertext_bytes() == 2 * 3 * 8192 * 8
    assert parameters.ciphertext_bytes(0) == 2 * 8192 * 8
    assert parameters.rotation_key_bytes == 3 * 2 * 4 * 8192 * 8

"""One suite for both back-ends: SEAL does, refuses and counts what the simulator does."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ckks.layers import adjust

from weft import WeftError
from weft.ckks.backends import Seal, Simulator
from weft.ckks.parameters import Parameters
from weft.ckks.slot_program import OperationCounts

KEYS = (1, 3, 64, 4000)
SECURE = Parameters(8192, depth=2)
DEEP = Parameters(4096, depth=8, security=None)
LARGEST = 100.0
"""Above it a test stops: 2^80 of scale leave values 9 bits in the 90 of level 1."""


@pytest.fixture(scope="module", params=[SECURE, Parameters(8192, depth=4, security=None)], ids=str)
def pair(request):
    return Simulator(request.param, KEYS), Seal(request.param, KEYS)


@pytest.fixture(scope="module", params=[Simulator, Seal])
def backend(request):
    return request.param(SECURE, KEYS)


@pytest.fixture(scope="module")
def deep():
    return Seal(DEEP, [1])


def numbers(seed, size, bound=1.0):
    return np.random.default_rng(seed).uniform(-bound, bound, size)


@st.composite
def plain_values(draw, slots):
    """A number, or a row of them that may be short, or zeros."""
    size = draw(st.sampled_from([0, 1, 7, slots // 2, slots, None]))
    bound = draw(st.sampled_from([0.0, 1e-300, 1.0, 1.0, 2.0]))
    return bound if size is None else numbers(draw(st.integers(0, 9)), size, bound)


PAIRS = ("add", "sub", "mul")
PLAIN = ("add_plain", "mul_plain")
NAMES = (*PAIRS, *PLAIN, "negate", "rescale", "rotate", "encrypt", "drop", "adjust")


def draw_step(draw, slots, held):
    """An operation as a function of a backend and of the ciphertexts it holds."""
    name = draw(st.sampled_from(NAMES))
    a, b = draw(st.integers(0, held - 1)), draw(st.integers(0, held - 1))
    values, level = draw(plain_values(slots)), draw(st.integers(0, 4))
    steps = draw(st.sampled_from([*KEYS, -1, 1 - slots, 0, 5]))
    more = {**dict.fromkeys(PLAIN, values), "rotate": steps, "drop": level}

    def step(it, ciphertexts):
        if name == "encrypt":
            return it.encrypt(values, level)
        if name == "adjust":
            return adjust(it, ciphertexts[a], level)
        second = [ciphertexts[b]] if name in PAIRS else [more[name]] if name in more else []
        return getattr(it, name)(ciphertexts[a], *second)

    return step


def outcome(step, backend, ciphertexts):
    try:
        return step(backend, ciphertexts)
    except WeftError as error:
        return [str(error), *getattr(error, "__notes__", [])]


@given(data=st.data())
def test_seal_equals_the_simulator(pair, data):
    exact, real = pair
    slots = exact.parameters.slots
    before = exact.counters.copy(), real.counters.copy()
    ours, theirs = ([it.encrypt(numbers(1, slots)), it.encrypt(numbers(2, slots))] for it in pair)
    for _ in range(data.draw(st.integers(1, 12))):
        step = draw_step(data.draw, slots, len(ours))
        one, two = outcome(step, exact, ours), outcome(step, real, theirs)
        if isinstance(one, list):
            assert one == two
        elif np.abs(one.content).max() < LARGEST:
            assert (one.level, one.scale) == (two.level, two.scale)
            ours.append(one)
            theirs.append(two)
    for one, two in zip(ours[-4:], theirs[-4:]):
        assert one.level == two.level
        np.testing.assert_allclose(real.decrypt(two), exact.decrypt(one), rtol=0, atol=1e-4)
    assert exact.counters - before[0] == real.counters - before[1]


def test_operations_are_those_of_numpy(backend):
    x, y, w = (numbers(seed, SECURE.slots) for seed in range(3))
    a, b = backend.encrypt(x), backend.encrypt(y)
    for ciphertext, expected in [
        (backend.add(a, b), x + y),
        (backend.sub(a, b), x - y),
        (backend.negate(a), -x),
        (backend.add_plain(a, w), x + w),
        (backend.add_plain(a, 0.25), x + 0.25),
        (backend.mul_plain(a, w), x * w),
        (backend.mul_plain(a, -0.5), -x / 2),
        (backend.mul(a, b), x * y),
        (backend.mul(a, a), x * x),
        (backend.rescale(backend.mul(a, b)), x * y),
        (backend.rotate(a, 3), x[(np.arange(SECURE.slots) + 3) % SECURE.slots]),
        (backend.rotate(a, 4000 - SECURE.slots), np.roll(x, 96)),
        (backend.drop(a, 0), x),
        (adjust(backend, a, 0), x),
        (backend.encrypt([1.0, 2.0], level=1), np.array([1.0, 2.0] + [0.0] * 4094)),
        (backend.encrypt(3), np.full(SECURE.slots, 3.0)),
        (backend.encrypt([]), np.zeros(SECURE.slots)),
        (a, x),  # nothing above changed it
    ]:
        np.testing.assert_allclose(backend.decrypt(ciphertext), expected, rtol=0, atol=1e-6)


def test_levels_and_scales(backend):
    a = backend.encrypt([1.0])
    assert (a.level, a.scale) == (2, 2.0**40)
    product = backend.mul(a, a)
    assert (product.level, product.scale) == (2, 2.0**80)
    low = backend.rescale(product)
    assert (low.level, low.scale) == (1, SECURE.scales[1])
    assert backend.rescale(backend.mul_plain(a, 2.0)).scale == low.scale
    assert backend.drop(product, 1).scale == product.scale
    assert adjust(backend, a, 0).scale == SECURE.scales[0]
    assert backend.encrypt([1.0], level=0).scale == SECURE.scales[0]
    assert backend.mul_plain(a, 2.0, scale=2.0**20).scale == 2.0**60


def test_values_that_reach_a_level_by_two_paths_can_be_added(backend):
    x = numbers(4, SECURE.slots)
    a = backend.encrypt(x)
    ones = backend.mul_plain(backend.rescale(backend.mul_plain(a, 1.0)), np.ones(SECURE.slots))
    total = backend.add(backend.rescale(ones), adjust(backend, a, 0))
    total = backend.sub(total, backend.encrypt(x, level=0))
    np.testing.assert_allclose(backend.decrypt(total), x, rtol=0, atol=1e-6)


@pytest.mark.parametrize("values", [0, 0.0, np.zeros(5), [], 1e-300, np.full(4096, 1e-200)])
def test_a_product_with_zeros_is_zero_and_counts(backend, values):
    x = numbers(5, SECURE.slots)
    a = backend.encrypt(x)
    before = backend.counters.copy()
    product = backend.mul_plain(a, values)
    assert backend.counters - before == OperationCounts(plain_products=1)
    assert (product.level, product.scale) == (2, 2.0**80)
    total = backend.rescale(backend.add(product, backend.mul_plain(a, 0.5)))
    np.testing.assert_allclose(backend.decrypt(total), x / 2, rtol=0, atol=1e-6)


def test_a_ciphertext_less_itself_is_zero(backend):
    a = backend.encrypt([1.0, 2.0])
    nothing = backend.sub(a, a)
    assert np.abs(backend.decrypt(nothing)).max() < 1e-7
    assert np.abs(backend.decrypt(backend.add(backend.negate(a), a))).max() < 1e-7
    assert backend.decrypt(backend.add(nothing, a))[1] == pytest.approx(2, abs=1e-6)


def test_subtracting_a_derived_ciphertext_gives_the_difference(backend):
    a = backend.encrypt([1.0, 2.0])
    before = backend.counters.copy()
    rest = backend.sub(backend.add_plain(a, [0.25, 0.5]), a)
    assert backend.decrypt(rest)[:3] == pytest.approx([0.25, 0.5, 0], abs=1e-6)
    count = OperationCounts(additions=1, plain_additions=1, decryptions=1)
    assert backend.counters - before == count


def test_counters(backend):
    before = backend.counters.copy()
    a = backend.encrypt([1.0])
    a = backend.rotate(backend.rotate(backend.rotate(a, 1), 3), 1)
    a = backend.add(backend.sub(a, a), backend.negate(a))
    a = backend.add_plain(a, [1.0, 2.0])
    a = backend.drop(backend.rescale(backend.mul(a, a)), 0)
    backend.decrypt(a)
    after = backend.counters - before
    assert after == OperationCounts(
        products=1, rescales=1, additions=3, plain_additions=1, drops=1,
        encryptions=1, decryptions=1, rotations_by_step=Counter({1: 2, 3: 1}),
    )  # fmt: skip
    assert str(after).startswith("3 rotations, 1 product, 1 rescale, 3 additions, 1 plain addition")
    assert str(after - after) == "nothing"
    assert replace(after, rescales=2) != after


REFUSED = {
    "key": (lambda it, a: it.rotate(a, 2), "there is no key for a rotation by 2",
            "keys were made for 1 3 64 4000"),
    "negative": (lambda it, a: it.rotate(a, -2), "there is no key for a rotation by 4094",
                 "keys were made for 1 3 64 4000"),
    "still": (lambda it, a: it.rotate(a, 4096),
              "a rotation by 4096 moves nothing: there are 4096 slots", ""),
    "steps": (lambda it, a: it.rotate(a, 1.5), "rotations must be a sequence of integers: (1.5,)",
              ""),
    "levels": (lambda it, a: it.add(a, it.drop(a, 1)),
               "ciphertexts at levels 2 and 1 cannot be added",
               "adjust the higher one to the level of the other"),
    "product of levels": (lambda it, a: it.mul(it.drop(a, 0), a),
                          "ciphertexts at levels 0 and 2 cannot be multiplied",
                          "adjust the higher one to the level of the other"),
    "scales": (lambda it, a: it.sub(a, it.mul_plain(a, 2.0)),
               "ciphertexts at scales 2^40.0 and 2^80.0 cannot be added",
               "rescale the products first, or adjust what comes from a higher level"),
    "near scales": (lambda it, a: it.add(it.drop(a, 1), it.rescale(it.mul(a, a))),
                    "ciphertexts at scales 2^40.0 and 2^40.0 cannot be added",
                    "rescale the products first, or adjust what comes from a higher level"),
    "no level": (lambda it, a: it.rescale(it.drop(a, 0)),
                 "a ciphertext at level 0 cannot be rescaled: depth 2 is used up",
                 "take parameters of a greater depth"),
    "no product": (lambda it, a: it.rescale(a),
                   "a rescale from scale 2^40.0 leaves 2^0.0, and no digits",
                   "multiply before a rescale, or drop to a lower level"),
    "no room": (lambda it, a: it.mul(it.drop(a, 0), it.drop(a, 0)),
                "a product at level 0 has no room: its scale would be 2^80.0, the modulus is "
                "2^50.0",
                "rescale first; at level 0 there is nothing left, take a greater depth"),
    "no room for a plaintext": (lambda it, a: it.mul_plain(it.drop(a, 0), 1.0),
                "a product at level 0 has no room: its scale would be 2^80.0, the modulus is "
                "2^50.0",
                "rescale first; at level 0 there is nothing left, take a greater depth"),
    "no room below": (lambda it, a: it.drop(it.mul(a, a), 0),
                "a ciphertext at level 0 has no room: its scale would be 2^80.0, the modulus is "
                "2^50.0",
                "rescale first; at level 0 there is nothing left, take a greater depth"),
    "up": (lambda it, a: it.drop(a, 2), "a ciphertext at level 2 cannot drop to level 2", ""),
    "level": (lambda it, a: it.drop(a, 3),
              "there is no level 3: the levels go from 0 to the depth, 2", ""),
    "adjust": (lambda it, a: adjust(it, a, 3),
               "a ciphertext cannot go from level 2 to 3: the depth is 2, and levels only fall",
               ""),
    "encrypt": (lambda it, a: it.encrypt([1.0], level=7),
                "there is no level 7: the levels go from 0 to the depth, 2", ""),
    "slots": (lambda it, a: it.mul_plain(a, np.ones(4097)),
              "4097 values do not fit 4096 slots", ""),
    "rank": (lambda it, a: it.encrypt(np.ones((2, 2))),
             "values are one number or a row, not an array of shape (2, 2)", ""),
    "ragged": (lambda it, a: it.encrypt([[1], [2, 3]]), "values must be real numbers", ""),
    "complex": (lambda it, a: it.add_plain(a, [1j]), "values must be real numbers", ""),
    "text": (lambda it, a: it.add_plain(a, "1"), "values must be real numbers", ""),
    "nan": (lambda it, a: it.add_plain(a, [1.0, float("nan")]),
            "values must be finite numbers; one is nan or infinite", ""),
    "large": (lambda it, a: it.encrypt([-300.0], level=0),
              "a value of 300 at scale 2^40.0 does not fit the modulus of 2^50.0 at level 0", ""),
    "scale": (lambda it, a: it.mul_plain(a, [1.0], scale=0.5),
              "the scale of a plaintext is 0.5; it must be finite, 1 or more", ""),
    "scale text": (lambda it, a: it.mul_plain(a, [1.0], scale="2"),
                   "the scale of a plaintext is '2'; it must be finite, 1 or more", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(backend, case):
    act, message, hint = REFUSED[case]
    a = backend.encrypt([1.0, 2.0])
    with pytest.raises(WeftError) as refused:
        act(backend, a)
    assert str(refused.value) == message
    assert getattr(refused.value, "__notes__", []) == ([f"hint: {hint}"] if hint else [])


def test_refused_operations_are_not_counted(backend):
    a = backend.encrypt([1.0])
    before = backend.counters.copy()
    for act in (
        lambda: backend.rotate(a, 2),
        lambda: backend.mul_plain(a, np.ones(5000)),
        lambda: backend.rescale(a),
    ):
        with pytest.raises(WeftError):
            act()
    assert backend.counters == before


@pytest.mark.parametrize("make", [Simulator, Seal])
def test_keys_that_were_not_made(make):
    backend = make(SECURE, [], relinearise=False)
    a = backend.encrypt([1.0])
    with pytest.raises(WeftError, match="no key for a product of two ciphertexts") as refused:
        backend.mul(a, a)
    assert refused.value.__notes__ == ["hint: give relinearise=True"]
    with pytest.raises(WeftError, match="no key for a rotation by 1") as refused:
        backend.rotate(a, 1)
    assert refused.value.__notes__ == ["hint: keys were made for no rotation"]
    with pytest.raises(WeftError, match="a rotation by 0 moves nothing"):
        make(SECURE, [1, 0])


@pytest.mark.parametrize("make", [Simulator, Seal])
def test_a_long_list_of_keys_is_cut(make):
    backend = make(SECURE, range(1, 11))
    a = backend.encrypt([1.0])
    with pytest.raises(WeftError) as refused:
        backend.rotate(a, 20)
    assert refused.value.__notes__ == ["hint: keys were made for 1 2 3 4 5 6 7 8 ..."]


def test_nothing_secret_is_printed(backend):
    a = backend.encrypt([0.123456, 7.0])
    assert repr(a) == "Ciphertext(level=2, scale=2^40.000)"
    assert repr(backend) == f"{type(backend).__name__}({SECURE}, rotation keys: 4)"
    assert repr(Simulator(SECURE)).endswith("rotation keys: all)")


def test_an_adjustment_is_exact(deep):
    x = numbers(6, DEEP.slots)
    a = deep.encrypt(x)
    for level in range(DEEP.depth):
        got = deep.decrypt(adjust(deep, a, level))
        assert abs(got @ x / (x @ x) - 1) < 1e-8  # the scale: 2^-40 and a little noise
        assert np.linalg.norm(got - x) < 1e-6 * np.linalg.norm(x)


def test_eight_products_in_a_row_do_not_drift(deep):
    x, signs = numbers(7, DEEP.slots), np.sign(numbers(8, DEEP.slots))
    fresh = one = deep.encrypt(x)
    two = deep.encrypt(signs)
    expected, turned = x, signs
    for level in reversed(range(DEEP.depth)):
        one = deep.rescale(deep.mul(one, two) if level % 2 else deep.mul_plain(one, signs))
        two = deep.rotate(deep.rescale(deep.mul_plain(two, 1.0)), 1)
        expected = expected * (turned if level % 2 else signs)
        turned = np.roll(turned, -1)
        got = deep.decrypt(one)
        assert (one.level, one.scale) == (level, DEEP.scales[level])
        assert abs(got @ expected / (x @ x) - 1) < 1e-7
        assert np.abs(got - expected).max() < 1e-6
        both = deep.add(one, adjust(deep, fresh, level))
        np.testing.assert_allclose(deep.decrypt(both), expected + x, rtol=0, atol=1e-6)


def test_noise_of_the_simulator():
    exact, noisy = Simulator(SECURE), Simulator(SECURE, noise=1e-3, seed=1)
    x = numbers(9, SECURE.slots)
    assert np.array_equal(exact.decrypt(exact.encrypt(x)), x)
    errors = [noisy.decrypt(noisy.encrypt(x)) - x for _ in range(2)]
    assert np.std(errors[0]) == pytest.approx(1e-3, rel=0.1)
    assert not np.array_equal(*errors)
    again = Simulator(SECURE, noise=1e-3, seed=1)
    assert np.array_equal(again.decrypt(again.encrypt(x)) - x, errors[0])
    with pytest.raises(WeftError, match=r"noise is -1; it cannot be negative"):
        Simulator(SECURE, noise=-1)

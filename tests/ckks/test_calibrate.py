"""Operation times: measured on ciphertexts, kept in machines and read from them."""

from collections import Counter
from dataclasses import replace

import pytest

from weft import Machine, WeftError
from weft.ckks.calibrate import MOST_LEVELS, ROWS, OperationTimes, calibrate
from weft.ckks.parameters import Parameters
from weft.ckks.slot_program import OperationCounts

TIMES = OperationTimes(8192, (1, 2), (0, 3), (0, 5), (0, 7), (11, 13), (17, 19))


@pytest.mark.parametrize("depth", [0, 1, 2, MOST_LEVELS + 3])
def test_every_level_has_a_time(depth):
    times = calibrate(Parameters(4096, depth, security=None), repeats=1)
    assert (times.ring, times.depth) == (4096, depth)
    for name in ROWS:
        row = getattr(times, name)
        assert len(row) == depth + 1
        assert all(seconds > 0 for seconds in row[1:])
        assert (row[0] > 0) == (name in ("rotation", "addition", "plain_addition"))


def test_times_are_in_the_order_that_they_must_be():
    times = calibrate(Parameters(8192, 4, security=None))
    top = times.depth
    assert times.rotation[top] > times.rescale[top] > times.addition[top]
    assert times.product[top] > times.plain_product[top] > times.addition[top]
    assert times.rotation[top] > 2 * times.rotation[0]


def test_seconds_of_counted_operations():
    numbers = [10, 100, 1000, 10_000, 100_000]
    names = ["plain_products", "products", "rescales", "additions", "plain_additions"]
    rotations = Counter({7: 1})
    counters = OperationCounts(
        **dict(zip(names, numbers)), rotations_by_step=rotations, encryptions=5, drops=3
    )
    assert TIMES.seconds(counters, 1) == 2 + 30 + 500 + 7000 + 130_000 + 1_900_000
    with pytest.raises(WeftError, match="at level 2 were not measured: levels 0 to 1 were"):
        TIMES.seconds(counters, 2)


def test_a_machine_keeps_them(tmp_path):
    other = replace(TIMES, ring=16384)
    machine = other.added_to(TIMES.added_to(Machine(name="mine", operations={"x": {"y": [1]}})))
    machine.save(tmp_path / "machine.toml")
    loaded = Machine.load(tmp_path / "machine.toml")
    assert loaded == machine
    assert (loaded.name, loaded.operations["x"]) == ("mine", {"y": (1.0,)})
    assert OperationTimes.of(loaded, 8192) == TIMES
    assert OperationTimes.of(loaded, 16384) == other


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            lambda: OperationTimes.of(Machine(), 4096),
            "the machine has no operation times for the ring N=4096",
        ),
        (
            lambda: OperationTimes.of(replace(TIMES, rescale=(0,)).added_to(Machine()), 8192),
            "the rows of ckks-8192 must have one length: {'rotation': 2, .* 'rescale': 1",
        ),
        (
            lambda: OperationTimes.of(Machine(operations={"ckks-8192": {"rotation": [1]}}), 8192),
            "the rows of ckks-8192 must have one length: .*'product': 0",
        ),
        (lambda: calibrate(Parameters(8192, 1), repeats=0), "repeats is 0; nothing would be"),
    ],
)
def test_refusals(act, message):
    with pytest.raises(WeftError, match=message):
        act()

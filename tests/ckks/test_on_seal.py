"""Every operator on the simulator and on real ciphertexts: right, and counted to the unit.

The back-end, which knows nothing of plans, counts what was predicted; the keys are those that were
predicted and no others, and each of them is used.
"""

import numpy as np
from hypothesis import assume, given, settings
from tests.ckks.cases import cases
from tests.trials import trials

from weft.ckks.backends import Seal, Simulator
from weft.ckks.slot_program import count, execute

EXAMPLES = trials(20, fewest=12)
"""Programs on real ciphertexts."""
OPERATIONS = trials(5000, 5000)
"""Products and rotations of the largest of them; a thousand take a second or two."""
RING = 1 << 13


def check(case, backend, error):
    given_ = [backend.encrypt(row, level) for row, level in zip(case.rows, case.levels)]
    before = backend.counters.copy()
    results = execute(case.program, backend, given_)
    counters, counted = backend.counters - before, count(case.program)
    assert case.cost == counted == counters
    assert case.cost.levels == counted.levels
    assert backend.rotations == case.cost.keys
    assert {each.level for each in results} == {case.left}
    assert {each.scale for each in results} == {case.parameters.scales[case.left]}
    values = np.array([backend.decrypt(each) for each in results])
    assert np.abs(values - case.answer).max() < error


@given(cases(sizes=(64, 256, 1024, 4096)))
def test_on_the_simulator(case):
    backend = Simulator(case.parameters, case.cost.keys, relinearise=case.cost.products > 0)
    check(case, backend, 1e-10)


@settings(max_examples=EXAMPLES)
@given(cases(sizes=(RING // 2,), side=40))
def test_on_ciphertexts(case):
    assume(case.cost.plain_products + case.cost.rotations <= OPERATIONS)
    assume(len(case.cost.keys) <= 300)
    backend = Seal(case.parameters, case.cost.keys, relinearise=case.cost.products > 0)
    assert backend._galois.size() == len(case.cost.keys)
    check(case, backend, 1e-4)

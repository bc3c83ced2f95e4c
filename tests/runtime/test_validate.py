"""Every kernel, box by box, under random placements and with partial operands, against one run."""

import array_api_strict
import numpy as np
import pytest
from tests.runtime import (  # noqa: F401
    cases_blocks,
    cases_contract,
    cases_index,
    cases_linalg,
    cases_move,
    cases_nn,
    cases_pointwise,
    cases_random,
    cases_reduce,
    cases_window,
)
from tests.runtime.cases import CASES
from tests.trials import trials

from weft import WeftError
from weft.lang import OPERATORS, Operator
from weft.runtime.validate import validate

TRIALS = trials(10, fewest=3)
"""Applications of each operator: 3 in `make test`, 10 in `make test-all`, 333 in `make fuzz`."""
STRICT_TRIALS = trials(3, 10, fewest=1)
"""The same with `array_api_strict`, which is slow."""

ON_STRUCTS = ("aggregate", "component")
"""Those whose arrays may have several components; `tests/lang/test_monoid.py` compares them."""

WITH_KERNELS = sorted(n for n, o in OPERATORS.items() if o.kernel and n not in ON_STRUCTS)
"""Those whose arrays are numbers."""


def test_every_operator_that_has_a_kernel_has_a_case():
    assert sorted(CASES) == sorted([*WITH_KERNELS, *ON_STRUCTS])


@pytest.mark.parametrize("name", [*WITH_KERNELS, *ON_STRUCTS])
def test_boxes_make_what_one_run_makes(name):
    for seed in range(TRIALS):
        operands, attributes = CASES[name](np.random.default_rng(seed))
        validate(OPERATORS[name], operands, attributes, seed=seed)


@pytest.mark.parametrize("name", [*WITH_KERNELS, *ON_STRUCTS])
def test_kernels_need_nothing_but_the_standard(name):
    """`array_api_strict` has the functions of the array API standard, and no others."""
    for seed in range(STRICT_TRIALS):
        operands, attributes = CASES[name](np.random.default_rng(seed))
        validate(OPERATORS[name], operands, attributes, xp=array_api_strict, trials=3)


def test_a_wrong_kernel_is_found():
    def forgets_the_rest(block, x):
        return x[:1] * 2 if block.box.start[0] else x * 2

    wrong = Operator("twice", "n -> n", forgets_the_rest)
    with pytest.raises(WeftError, match="the kernel of twice made"):
        validate(wrong, [np.arange(12)])


def test_a_wrong_line_is_found():
    """The difference of neighbours needs both; a line that names one of them is refused."""
    wrong = Operator("step", "n -> n", lambda block, x: x - block.xp.roll(x, 1))
    with pytest.raises(WeftError, match="step is wrong where 'n' is cut into"):
        validate(wrong, [np.arange(12) ** 2])


def test_a_wrong_claim_of_linearity_is_found():
    right = Operator("treble", "n -> n", lambda block, x: 3 * x, keeps={"sum": [(0,)]})
    assert validate(right, [np.arange(12)]).partials == 1
    broken = Operator("offset", "n -> n", lambda block, x: x + 1, keeps={"sum": [(0,)]})
    with pytest.raises(WeftError, match=r"offset is wrong where operands \[0\] are partial by sum"):
        validate(broken, [np.arange(12)])


def test_a_bias_is_added_once():
    """The terms outside a reduction count once, however the reduction is cut."""
    linear = OPERATORS["linear"]
    x, w, b = np.ones((4, 6), int), np.ones((6, 5), int), np.full(5, 100)
    assert validate(linear, [x, w, b], trials=30).boxes > 60
    again = Operator("linear", "m k, k n, n -> m n  sum: k", linear.kernel)
    line = again.sign([(4, 6), (6, 5), (5,)])
    assert not line.notation.once


def test_no_kernel_is_an_error():
    with pytest.raises(WeftError, match="mystery has no kernel: it can be planned, not run"):
        validate(Operator("mystery", "n -> n"), [np.arange(4)])

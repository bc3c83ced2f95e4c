"""What a task makes is what the graph declares and what storage holds, or the run is refused."""

import numpy as np
import pytest
import zarr

from weft import Plan, WeftError, propagate, run, trace
from weft.lang import OPERATORS, Operator
from weft.lang.arithmetic import apply_all
from weft.runtime.cluster import Output, TaskError
from weft.runtime.cluster.worker import ApplicationKernel, WorkerContext, _check_declared

X = np.arange(24, dtype="uint16").reshape(4, 6)


@pytest.fixture
def operators():
    known = dict(OPERATORS)
    yield OPERATORS
    OPERATORS.clear()
    OPERATORS.update(known)


def plan_of(name):
    return Plan.of(propagate(trace(lambda x: {"y": apply_all(name, x)[0]}, X)))


def test_a_kernel_that_makes_another_dtype_is_refused_and_nothing_is_written(tmp_path, operators):
    operators.add(Operator("doubled", "m n -> m n", lambda block, x: x * 2.0))
    outputs = {"y": Output(tmp_path / "y", chunks=(2, 6))}
    with pytest.raises(TaskError, match=r"doubled could not compute y, .* made float64 for"):
        run(plan_of("doubled"), {"x": X}, on="threads", outputs=outputs)
    assert not any((tmp_path / "y").rglob("c/*"))


def test_a_kernel_that_makes_another_shape_or_number_of_results_is_refused(operators):
    operators.add(Operator("cropped", "m n -> m n", lambda block, x: x[1:]))
    with pytest.raises(TaskError, match=r"cropped could not compute y, .* made \[3, 6\] for box"):
        run(plan_of("cropped"), {"x": X}, on="threads")
    operators.add(Operator("two", "m n -> m n", lambda block, x: (x, x)))
    with pytest.raises(TaskError, match=r"two could not compute y, .* made 2 arrays for 1 results"):
        run(plan_of("two"), {"x": X}, on="threads")


def test_the_declared_dtype_is_that_of_the_graph():
    plan = Plan.of(propagate(trace(lambda x: {"y": x + x}, X)))
    (kernels,) = WorkerContext.of(plan).kernels
    assert [kernel.dtypes for kernel in kernels] == [("uint16",)]
    assert ApplicationKernel._fields[-1] == "dtypes"
    with pytest.raises(WeftError, match="made float32 for y, which is declared as uint16"):
        _check_declared(("y",), ("uint16",), (X.astype("float32"),))


def test_storage_of_another_dtype_is_refused_before_an_engine_starts(tmp_path):
    plan = Plan.of(propagate(trace(lambda x: {"y": x + x}, X)))
    zarr.create_array(tmp_path / "x", data=X.astype("uint8"), chunks=(2, 6), zarr_format=3)
    with pytest.raises(WeftError, match=r"input x: uint16\[4, 6\] cannot have the dtype uint8"):
        run(plan, {"x": tmp_path / "x"}, on="nowhere:1")

"""What tasks take in memory, kernels included, beside what is predicted of them."""

import tracemalloc

import numpy as np
import pytest
from tests.runtime.monoids import SPREAD

from weft import Plan, ops, propagate, trace
from weft.lang import OPERATORS, Operator
from weft.lang.arithmetic import apply_all
from weft.program.storage import Storage
from weft.runtime.cluster import TaskGraph, WorkerContext
from weft.runtime.cluster.schedule import task_memory
from weft.runtime.cluster.worker import run_task

SIDE = 500
BUFFERS = 100_000
"""What NumPy takes for itself, whatever the arrays."""


class Whole:
    def __init__(self, array):
        self.array = array

    def read_counted(self, box, *, threads):
        return self.array[box.slices()].copy(), 0


def blur(x, w):
    for dim in range(3):
        x = ops.correlate(x, w, dim)
    return x.mean(0)


def standard(x):
    centred = x - x.mean(1, keepdims=True)
    return centred / ops.sqrt((centred**2).mean(1, keepdims=True))


UNARY = [
    name
    for name, operator in OPERATORS.items()
    if operator.workspace != 1
    and name not in ("attention", "convolution", "divide", "matmul", "remainder", "topk")
]
OTHERS = (
    "shift",
    "count",
    "popcnt",
    "random",
    "rng",
    "threefry",
    "dropout",
    "aggregate",
    "component",
)
UNARY = [name for name in UNARY if not name.startswith(OTHERS)]
PROGRAMS = (
    {
        "chain": (lambda x: ops.exp(ops.tanh(x * 2 + 1) - x) / 3, (SIDE, SIDE)),
        "matmul": (lambda x, w: ops.relu(x @ w), (SIDE, SIDE), (SIDE, SIDE)),
        "transpose": (lambda x: ops.transpose(x) + 1, (SIDE, SIDE)),
        "sum": (lambda x: (x * x).sum(0), (SIDE, SIDE)),
        "mean": (lambda x: x.mean(0), (64, 128, 64)),
        "cumsum": (lambda x: ops.cumsum(x, 0), (SIDE, SIDE)),
        "topk": (lambda x: ops.topk(x, 2), (SIDE, SIDE)),
        "most": (lambda x: ops.topk(x, 100), (SIDE, SIDE)),
        "argmax": (lambda x: ops.argmax(x, 0), (SIDE, SIDE)),
        "var": (lambda x: ops.var(x, 1), (SIDE, SIDE)),
        "spread": (lambda x: ops.component(ops.aggregate(x, SPREAD, 1), "low"), (SIDE, SIDE)),
        "convolve": (ops.convolve, (1, 4, 128, 128), (4, 4, 3, 3)),
        "blur": (blur, (96, 200, 96), (9,)),
        "einsum": (lambda x, w: ops.einsum("bij,bjk->bik", x, w), (8, 128, 128), (8, 128, 128)),
        "where": (lambda x: ops.where(x > 0, x, -x), (SIDE, SIDE)),
        "concatenate": (lambda x: ops.concatenate([x, x], 0), (SIDE, SIDE)),
        "standard": (standard, (SIDE, SIDE)),
        "noise": (lambda x: x + ops.random_normal(0, (SIDE, SIDE)), (SIDE, SIDE)),
        "dropout": (lambda x: ops.dropout(x, 0.5, 0), (SIDE, SIDE)),
        "bits": (
            lambda x: ops.random_bits(0, (SIDE, SIDE)).view("int32") + x.view("int32"),
            (SIDE, SIDE),
        ),
    }
    | {
        name: (lambda x, name=name: getattr(ops, name)(x), (SIDE, SIDE))
        for name in UNARY
        if name not in ("sort", "logsumexp_dim")
    }
    | {
        "sort": (ops.sort, (SIDE, SIDE)),
        "logsumexp": (lambda x: ops.logsumexp(x, 1), (SIDE, SIDE)),
    }
)


def took(function, shapes, memory=None):
    """The tasks of a program whose inputs are stored, with the bytes predicted and measured."""
    plan = Plan.of(propagate(trace(function, *shapes, meshes=['@m = <["x"=1]>'])))
    rng = np.random.default_rng(0)
    inputs = {v.name: rng.random(v.shape, np.float32) for v in plan.graph.inputs}
    stored = {
        n: Storage(x.shape, [min(64, s) for s in x.shape], None, 4) for n, x in inputs.items()
    }
    graph = TaskGraph.of(plan, stored, memory=memory)
    context, made = WorkerContext.of(plan, {name: Whole(x) for name, x in inputs.items()}), {}
    for task in graph.tasks:
        if not task.steps:
            continue
        run_task(context, task, {})
        tracemalloc.start()
        made[task.number] = run_task(context, task, {})[0]
        yield (
            task,
            task_memory(task, graph.tasks, plan.itemsize),
            tracemalloc.get_traced_memory()[1],
        )
        tracemalloc.stop()


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_task_takes_more_than_is_predicted(name):
    function, *shapes = PROGRAMS[name]
    found = list(took(function, shapes))
    assert found
    for task, predicted, measured in found:
        assert measured <= predicted + BUFFERS, task
        assert predicted <= 4 * measured + BUFFERS, f"{task}: so much is not needed"


def test_an_operator_declares_the_workspace_of_its_kernel():
    def kernel(block, x):
        return sum(x * k for k in range(3)) + np.concatenate([x, x, x, x])[: len(x)]

    OPERATORS.add(Operator("wasteful", "m n -> m n", kernel, workspace=6))
    try:
        found = list(took(lambda x: apply_all("wasteful", x)[0], [(SIDE, SIDE)]))
    finally:
        del OPERATORS["wasteful"]
    ((task, predicted, measured),) = found
    assert predicted == (1 + 1 + 6) * 4 * SIDE * SIDE, task  # what it reads, makes, and says
    assert measured <= predicted

"""`run`: a plan executed in this process, all cells side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.lang import Value
from weft.plan import Plan, Propagation
from weft.run.arrays import Array, namespace
from weft.run.prepared import Prepared, leaders
from weft.run.tensor import Tensor


def run(plan: Plan | Propagation, inputs: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """The outputs of a plan, or of a propagated graph, each a tensor that lies as it says.

    An input is an array, or a tensor; it is put on the mesh as the plan wants it.

    >>> import numpy as np
    >>> from weft import propagate, trace
    >>> graph = trace(
    ...     lambda x, w: x @ w, (8, 4), (4, 2),
    ...     meshes=['@m = <["x"=2]>'], shardings={"x": '<@m, [{}, {"x"}]>'},
    ... )
    >>> arrays = {"x": np.ones((8, 4), "float32"), "w": np.ones((4, 2), "float32")}
    >>> (y,) = run(propagate(graph), arrays)
    >>> print(y, y.numpy()[0])
    matmul: float32[8, 2] <@m, [{}, {}]> [4. 4.]
    """
    if isinstance(plan, Propagation):
        plan = Plan.of(plan)
    values = {value.name: _placed_input(plan, value, inputs) for value in plan.graph.inputs}
    for name in inputs:
        if name not in values:
            known = ", ".join(values) or "none"
            raise WeftError(f"there is no input {name}", hint=f"the inputs are {known}")
    for number in range(len(plan.graph.applications)):
        _apply(plan, number, values)
    return tuple(
        values[name].with_sharding(wanted).named(name)
        for name, wanted in zip(plan.graph.outputs, plan.outputs)
    )


def _placed_input(plan: Plan, value: Value, inputs: Mapping[str, Any]) -> Tensor:
    if value.name not in inputs:
        raise WeftError(f"input {value.name} is missing: {value}")
    given = inputs[value.name]
    tensor = given if isinstance(given, Tensor) else Tensor(given)
    if tensor.shape != value.shape:
        raise WeftError(f"input {value} cannot have the shape {list(tensor.shape)}")
    if tensor.dtype != value.dtype:
        raise WeftError(f"input {value} cannot have the dtype {tensor.dtype}")
    return tensor.named(value.name).with_sharding(plan.specs[value.name])


def _apply(plan: Plan, number: int, values: dict[str, Tensor]) -> None:
    application, placed = plan.graph.applications[number], plan.placed[number]
    operator = plan.graph.operators.find(application.operator)
    prepared = Prepared(
        operator,
        application.attributes,
        placed,
        plan.deliveries[number],
        tuple(str(values[name]) for name in application.operands),
        leaders(placed),
    )
    operands = [values[name].shards for name in application.operands]
    results = prepared.run(_namespace(operands), operands)
    for name, shards, spec, shape in zip(
        application.results, results, placed.results, prepared.shapes
    ):
        made = Tensor.of_shards(shards, spec, shape, name)
        values[name] = made.with_sharding(plan.specs[name])


def _namespace(operands: list[Any]) -> Any:
    arrays: list[Array] = [shards[0] for shards in operands]
    return namespace(*arrays or [np.empty(0)])

"""`run`: a plan executed in this process, all cells side by side; and the walk that ranks share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.lang import Graph, Value
from weft.plan import Plan, Propagation
from weft.run.arrays import namespace
from weft.run.cells import ALL, Cause, Cells, Shards
from weft.run.prepared import Prepared, prepare
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
    plan = as_plan(plan)
    check_inputs(plan.graph, inputs)
    values = {value.name: _placed(plan, value, inputs[value.name]) for value in plan.graph.inputs}
    xp = _namespace([tensor.shards[0] for tensor in values.values()])
    made = walk(plan, xp, {name: tensor.shards for name, tensor in values.items()}, ALL)
    return tuple(
        Tensor.of_shards(shards, spec, plan.graph.values[name].shape, name)
        for name, shards, spec in zip(plan.graph.outputs, made, plan.outputs)
    )


def walk(plan: Plan, xp: Any, inputs: Mapping[str, Shards], cells: Cells) -> list[Shards]:
    """The shards of the outputs on the cells that are here; every process walks the same way.

    The inputs lie as the plan says. What no later application reads is dropped.
    """
    graph, values = plan.graph, dict(inputs)
    last = _last_uses(graph)
    for number, application in enumerate(graph.applications):
        prepared = _prepared(plan, number, cells)
        made = prepared.run(xp, [values[name] for name in application.operands])
        placed = plan.placed[number].results
        for name, shards, spec, reshard in zip(
            application.results, made, placed, plan.settlings[number]
        ):
            cause = Cause(application.operator, f"{graph.values[name]} {spec}")
            values[name] = cells.move(xp, shards, reshard.steps, cause)
        for name in {*application.operands, *application.results}:
            if last.get(name, -1) <= number:
                del values[name]
    return [
        cells.move(xp, values[name], reshard.steps, Cause("output", _label(plan, name)))
        for name, reshard in zip(graph.outputs, plan.returns)
    ]


def _last_uses(graph: Graph) -> dict[str, int]:
    """For each value the number of the last application that reads it; outputs are read last."""
    last = {
        name: number
        for number, application in enumerate(graph.applications)
        for name in application.operands
    }
    return last | dict.fromkeys(graph.outputs, len(graph.applications))


def _prepared(plan: Plan, number: int, cells: Cells) -> Prepared:
    application = plan.graph.applications[number]
    operator = plan.graph.operators.find(application.operator)
    names = [_label(plan, name) for name in application.operands]
    deliveries = plan.deliveries[number]
    return prepare(operator, application.attributes, plan.placed[number], deliveries, names, cells)


def _label(plan: Plan, name: str) -> str:
    return f"{plan.graph.values[name]} {plan.specs[name]}"


def as_plan(plan: Plan | Propagation) -> Plan:
    """The plan, or the one that follows from a propagation."""
    return Plan.of(plan) if isinstance(plan, Propagation) else plan


def check_inputs(graph: Graph, inputs: Mapping[str, Any]) -> None:
    """Refuse inputs that are missing, and those that nobody asked for."""
    known = {value.name: value for value in graph.inputs}
    for name, value in known.items():
        if name not in inputs:
            raise WeftError(f"input {name} is missing: {value}")
    for name in inputs:
        if name not in known:
            names = ", ".join(known) or "none"
            raise WeftError(f"there is no input {name}", hint=f"the inputs are {names}")


def check_array(value: Value, shape: tuple[int, ...], dtype: str) -> None:
    """Refuse an array that is not what an input is said to be."""
    if shape != value.shape:
        raise WeftError(f"input {value} cannot have the shape {list(shape)}")
    if dtype != value.dtype:
        raise WeftError(f"input {value} cannot have the dtype {dtype}")


def _placed(plan: Plan, value: Value, given: Any) -> Tensor:
    tensor = given if isinstance(given, Tensor) else Tensor(given)
    check_array(value, tensor.shape, tensor.dtype)
    return tensor.named(value.name).with_sharding(plan.specs[value.name])


def _namespace(arrays: list[Any]) -> Any:
    try:
        return namespace(*arrays or [np.empty(0)])
    except TypeError as error:
        kinds = ", ".join(dict.fromkeys(type(array).__name__ for array in arrays))
        raise WeftError(f"the inputs are arrays of different libraries: {kinds}") from error

"""`run`: a plan executed in this process, all cells side by side; and the walk that ranks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.errors import WeftError
from weft.lang import Graph, Value
from weft.lang.region import arguments
from weft.layout import ShardingSpec
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
        if not application.results:
            continue
        operands = [values[name] for name in application.operands]
        made: Sequence[Shards]
        if application.regions:
            made = _run_regions(plan, number, xp, operands, cells)
        else:
            made = _prepared(plan, number, cells).run(xp, operands)
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


def _run_regions(
    plan: Plan, number: int, xp: Any, operands: Sequence[Shards], cells: Cells
) -> list[Shards]:
    """The results of an application that runs graphs of its own: a loop, or one of its branches."""
    application, plans = plan.graph.applications[number], plan.regions[number]
    outside = dict(zip(application.operands, operands))
    match application.operator:
        case "while":
            count = len(application.results)
            return _loop(plan, number, xp, list(operands[:count]), outside, cells)
        case "case" | "if":
            chosen = _branch(xp, operands[0][0], len(plans), application.operator)
            made = _inside(plan, number, chosen, xp, (), outside, cells)
            return _as_made(plan, number, xp, made, cells)
    raise WeftError(f"{application.operator} runs a graph of its own, and cannot be run here")


def _loop(
    plan: Plan,
    number: int,
    xp: Any,
    carried: list[Shards],
    outside: Mapping[str, Shards],
    cells: Cells,
) -> list[Shards]:
    """A loop: its values as they are when the condition no longer holds."""
    application = plan.graph.applications[number]
    held = [plan.specs[name] for name in application.operands[: len(carried)]]
    while True:
        inner = plan.regions[number][1]
        names = [value.name for value in arguments(application, inner.graph)]
        into = [inner.specs[name] for name in names]
        carried = _moved(plan, number, xp, carried, held, into, cells)
        held = into
        (going,) = _inside(plan, number, 0, xp, carried, outside, cells)
        if not bool(going[0]):
            return _moved(plan, number, xp, carried, held, plan.placed[number].results, cells)
        carried = _inside(plan, number, 1, xp, carried, outside, cells)


def _inside(
    plan: Plan,
    number: int,
    region: int,
    xp: Any,
    given: Sequence[Shards],
    outside: Mapping[str, Shards],
    cells: Cells,
) -> list[Shards]:
    """What a region returns; what it takes from outside lies as it does there."""
    application, inner = plan.graph.applications[number], plan.regions[number][region]
    own = [value.name for value in arguments(application, inner.graph)]
    taken = [value.name for value in inner.graph.inputs if value.name not in own]
    return walk(inner, xp, {**dict(zip(own, given)), **{n: outside[n] for n in taken}}, cells)


def _moved(
    plan: Plan,
    number: int,
    xp: Any,
    shards: Sequence[Shards],
    held: Sequence[ShardingSpec],
    wanted: Sequence[ShardingSpec],
    cells: Cells,
) -> list[Shards]:
    """The carried values of a loop under other shardings."""
    names = plan.graph.applications[number].results
    found = []
    for name, array, src, dst in zip(names, shards, held, wanted):
        steps = plan.reshard(name, src, dst).steps
        found.append(cells.move(xp, array, steps, Cause("while", _label(plan, name))))
    return found


def _as_made(
    plan: Plan, number: int, xp: Any, made: Sequence[Shards], cells: Cells
) -> list[Shards]:
    """What a branch returns, under the shardings in which the application makes it."""
    held = [plan.specs[name] for name in plan.graph.applications[number].results]
    return _moved(plan, number, xp, made, held, plan.placed[number].results, cells)


def _branch(xp: Any, index: Any, count: int, operator: str) -> int:
    """The number of the branch: of `case` the last one where the index is out of range."""
    if operator == "if":
        return 0 if bool(index) else 1
    chosen = int(index)
    return chosen if 0 <= chosen < count else count - 1


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

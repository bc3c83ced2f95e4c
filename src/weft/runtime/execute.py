"""`run`: a plan executed in this process, all cells side by side; and checks of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from os import PathLike
from typing import Any

import numpy as np
from array_api_compat import is_jax_array

from weft.errors import WeftError
from weft.lang import Graph, Value
from weft.lang.struct_array import StructArray
from weft.plan import Plan, Propagation, Strategy, propagate
from weft.runtime.arrays import copied, namespace
from weft.runtime.local import Shards, execute
from weft.runtime.tensor import Tensor, tensor_of


def run(
    plan: Plan | Propagation,
    inputs: Mapping[str, Any],
    *,
    on: Any = None,
    outputs: Mapping[str, Any] | None = None,
    memory: int | None = None,
) -> tuple[Any, ...]:
    """The outputs of a plan, or of a propagated graph, each a tensor that lies as it says.

    An input is an array, or a tensor; it is put on the mesh as the plan wants it. All cells run in
    this process, or `on` the workers of an engine: "ray", "dask", "threads", an address, a Dask
    client, or an engine of `weft.runtime.cluster`.

    On an engine an input may be the path or the URL of a Zarr array, of which every task reads its
    box, and `outputs` says which outputs are stored in sharded Zarr arrays, and where: those come
    back as arrays in storage. With `memory`, the bytes that a worker may take for arrays, tasks are
    cut until they fit.

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
    if on is not None:
        cluster = import_module("weft.runtime.cluster")
        cluster.check_places(plan, inputs, outputs or {})  # before a cluster is started
        with cluster.engine_of(on) as engine:
            found: tuple[Any, ...] = cluster.run_on(engine, plan, inputs, outputs, memory=memory)
        return found
    if outputs or memory is not None or any(map(is_stored, inputs.values())):
        raise WeftError(
            "arrays in storage and bounded memory need an engine",
            hint='run(..., on="ray"), or on="threads" with nothing to install',
        )
    given: list[Shards] = [_placed(plan, value, inputs[value.name]) for value in plan.graph.inputs]
    xp = _namespace([shards[0] for shards in given])
    borrowed = [shard for shards in given for shard in shards]
    made = execute(plan.program, xp, given)
    results = []
    for name, shards, spec in zip(plan.graph.outputs, made, plan.outputs):
        own = [_apart_from(borrowed, xp, shard) for shard in shards]
        shape = plan.graph.values[name].shape
        results.append(tensor_of(own, spec, shape, name))
    return tuple(results)


def run_graph(graph: Graph, arrays: Mapping[str, Any], strategy: Strategy) -> tuple[Any, ...]:
    """Propagate, plan and run a traced graph with the arrays that its tracer holds."""
    return run(propagate(graph, strategy), arrays)


def _apart_from(inputs: Sequence[Any], xp: Any, shard: Any) -> Any:
    """A shard of a result, copied if it lies in the memory of an input: the caller may change that.

    Only for NumPy's arrays can this be told; those of other libraries are copied if they change.
    """
    if isinstance(shard, StructArray):
        return copied(xp, shard)
    if isinstance(shard, np.ndarray):
        shares = any(np.may_share_memory(shard, other) for other in inputs)
        return shard.copy() if shares else shard
    return shard if is_jax_array(shard) else copied(xp, shard)


def is_stored(given: Any) -> bool:
    """Whether an input lies in storage: a path, a URL, or an array that is open there."""
    return isinstance(given, str | PathLike) or hasattr(given, "read_counted")


def as_plan(plan: Plan | Propagation) -> Plan:
    """The plan, or the one that follows from a propagation."""
    return plan if isinstance(plan, Plan) else Plan.of(plan)


def check_inputs(graph: Graph, inputs: Mapping[str, Any]) -> None:
    """Refuse inputs that are missing or unknown, and graphs that cannot run as declared."""
    if not isinstance(inputs, Mapping):
        raise WeftError(
            f"inputs are arrays by name, got a {type(inputs).__name__}",
            hint=f"{{{', '.join(f'{value.name!r}: ...' for value in graph.inputs)}}}",
        )
    graph.check_dtypes()
    known = {value.name: value for value in graph.inputs}
    for name, value in known.items():
        if name not in inputs:
            is_key = (value.shape, value.dtype) == ((2,), "uint32")
            hint = "a random key: weft.ops.random_key(seed)" if is_key else None
            if name in graph.parameters and not is_key:
                hint = "a parameter: a weight, or an array that the traced function captured"
            raise WeftError(f"input {name} is missing: {value}", hint=hint)
    for name in inputs:
        if name not in known:
            names = ", ".join(known) or "none"
            raise WeftError(f"there is no input {name}", hint=f"the inputs are {names}")


def check_array(value: Value, shape: tuple[int, ...], dtype: str) -> None:
    """Refuse an array that is not what an input is said to be."""
    if shape != value.shape:
        raise WeftError(f"input {value} cannot have the shape {list(shape)}")
    if dtype != value.dtype:
        raise WeftError(
            f"input {value} cannot have the dtype {dtype}",
            hint=f"convert the array, x.astype({value.dtype!r}), or trace with its dtype: "
            "weft.trace(function, array)",
        )


def _placed(plan: Plan, value: Value, given: Any) -> list[Any]:
    """The shards of an input, laid out as the plan wants it."""
    tensor = given if isinstance(given, Tensor) else Tensor(given, copy=False)
    check_array(value, tensor.shape, tensor.dtype)
    return tensor.named(value.name).laid_out(plan.specs[value.name])


def _namespace(arrays: list[Any]) -> Any:
    try:
        return namespace(*arrays or [np.empty(0)])
    except TypeError as error:
        kinds = ", ".join(dict.fromkeys(type(array).__name__ for array in arrays))
        raise WeftError(f"the inputs are arrays of different libraries: {kinds}") from error

"""`run`: a plan executed by the ranks of a process group, a cell each."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

import array_api_compat.torch as xp
import numpy as np
import torch

from weft.errors import LayoutError
from weft.lang import Value
from weft.lang.dtype import dtype_name
from weft.lang.graph_json import to_json
from weft.lang.kernel import native
from weft.plan import Plan, Propagation
from weft.program import Program
from weft.runtime.execute import as_plan, check_array, check_inputs
from weft.runtime.local import execute
from weft.runtime.torch.ranks import Ranks
from weft.runtime.torch.shard import Shard, working_on


def run(
    plan: Plan | Propagation, inputs: Mapping[str, Any], group: Any = None
) -> tuple[Shard, ...]:
    """The outputs of a plan, of each what lies on this rank; all ranks of the group call it.

    The mesh has a cell for each rank, and rank r is device r. An input is a whole array on every
    rank, of which each takes its box, or a `Shard` of what this rank has. Tensors stay on their
    device; other arrays are put on the device of the first tensor, or else where the group's
    back-end works.

    `weft.communication` counts and refuses as in one process: what a rank notes of itself is
    counted in its buffers, what it notes of the others is what the boxes say. Before a run the
    ranks compare eight bytes, so that different plans are an error and no wrong result.

    >>> y, = run(plan, {"x": x, "w": w})  # doctest: +SKIP
    >>> y.box, y.gather()  # doctest: +SKIP
    """
    plan, ranks = as_plan(plan), Ranks.of(group)
    ranks.check(plan.mesh)
    check_inputs(plan.graph, inputs)
    device = _device(ranks, inputs)
    with working_on(device):
        taken = {v.name: _taken(plan, v, inputs[v.name], ranks, device) for v in plan.graph.inputs}
        ranks.agree(_digest(plan.program, taken), device, ", ".join(taken) or "nothing")
        given = []
        for name in list(taken):
            given.append([taken.pop(name).with_sharding(plan.specs[name]).array])
        made = execute(plan.program, xp, given, ranks.here)
    return tuple(
        Shard(array, spec, plan.graph.values[name].shape, name, group)
        for name, (array,), spec in zip(plan.graph.outputs, made, plan.outputs)
    )


def _device(ranks: Ranks, inputs: Mapping[str, Any]) -> torch.device:
    for given in inputs.values():
        array = given.array if isinstance(given, Shard) else given
        if isinstance(array, torch.Tensor):
            return array.device
    return ranks.device


def _taken(plan: Plan, value: Value, given: Any, ranks: Ranks, device: torch.device) -> Shard:
    """Return this rank's shard of an input, or its box of a whole array."""
    if isinstance(given, Shard):
        check_array(value, given.shape, given.dtype)
        array, spec = given.array.to(device), given.spec
        return Shard(array, spec, value.shape, value.name, ranks.group)
    spec = plan.specs[value.name]
    whole = given if isinstance(given, torch.Tensor) else np.asarray(given)
    check_array(value, tuple(whole.shape), dtype_name(whole.dtype))
    if spec.partial:
        raise LayoutError(
            f"a whole array is not partial: input {value} is {spec}",
            hint="give each rank its part as a Shard",
        )
    part = whole[spec.region(value.shape, ranks.cell(plan.mesh)).slices()]
    if not isinstance(part, torch.Tensor):
        part = _as_torch(np.ascontiguousarray(part).reshape(part.shape))
    return Shard(part.to(device), spec, value.shape, value.name, ranks.group)


def _as_torch(array: Any) -> torch.Tensor:
    """A copy of a NumPy array; dtypes that NumPy does not have by itself go over as bytes."""
    if array.dtype.kind != "V":
        return torch.tensor(array)
    dtype = native(torch, dtype_name(array.dtype))
    return torch.tensor(array.view(f"uint{8 * array.dtype.itemsize}")).view(dtype)


def _digest(program: Program, inputs: Mapping[str, Shard]) -> int:
    """Return a number that tells programs apart, and how their inputs lie."""
    if program not in _KNOWN:
        monoids = [monoid.fingerprint for monoid in program.monoids.values()]
        _KNOWN[program] = "\n".join([*map(to_json, program.graphs), str(program), *monoids])
    text = "\n".join([_KNOWN[program], *map(str, inputs.values())])
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big", signed=True)


_KNOWN: WeakKeyDictionary[Program, str] = WeakKeyDictionary()

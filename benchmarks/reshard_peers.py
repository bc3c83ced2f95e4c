"""How others plan a reshard: the bytes that each cell receives in all, for pairs of shardings."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

from weft import DeviceMesh, ShardingSpec, plan_reshard

Pair: TypeAlias = tuple[ShardingSpec, ShardingSpec]
ARGUMENT = re.compile(r"(%arg\w+): \S+ \{sdy.sharding = #sdy.sharding(<.*?>)\}")
OP = re.compile(r"(%\w+) = sdy\.\w+ .*?(%\w+) out_sharding=(<.*>) : tensor")


class Shardy:
    """The pass of Shardy, in jaxlib, that turns reshards into collectives."""

    def __init__(self, pairs: Sequence[Pair], shape: tuple[int, ...]) -> None:
        from jax.interpreters import mlir
        from jaxlib.mlir import ir, passmanager

        self.pairs, self.shape = pairs, shape
        self.context = mlir.make_ir_context()
        with self.context:
            self.module = ir.Module.parse(self._text())
            self.passes = passmanager.PassManager.parse(
                "builtin.module(func.func(sdy-reshard-to-collectives))"
            )

    def _text(self) -> str:
        """One function with a reshard for every pair."""
        tensor = f"tensor<{'x'.join(map(str, self.shape))}xf32>"
        sources = list(dict.fromkeys(src for src, _ in self.pairs))
        arguments = ", ".join(
            f"%arg{n}: {tensor} {{sdy.sharding = #sdy.sharding{src}}}"
            for n, src in enumerate(sources)
        )
        places = {src: n for n, src in enumerate(sources)}
        reshards = [
            f"%{n} = sdy.reshard %arg{places[src]} {dst} : {tensor}"
            for n, (src, dst) in enumerate(self.pairs)
        ]
        results = ", ".join(f"%{n}" for n in range(len(self.pairs)))
        types = ", ".join([tensor] * len(self.pairs))
        body = "\n".join([*reshards, f"return {results} : {types}"])
        mesh = f"sdy.mesh {self.pairs[0][0].mesh}"
        return f"module {{ {mesh}\n func.func @main({arguments}) -> ({types}) {{ {body} }} }}"

    def plan(self) -> Any:
        """Run the pass on a copy."""
        with self.context:
            copy = self.module.operation.clone()
            self.passes.run(copy)
            return copy

    def copy(self) -> Any:
        """The copy alone, so that its time can be taken off."""
        with self.context:
            return self.module.operation.clone()

    def received(self) -> list[int]:
        """For each pair the bytes of its collectives, each done in the best way."""
        mesh = self.pairs[0][0].mesh
        with self.context:
            text = str(self.plan())
        known = {
            name: (ShardingSpec.parse(spec, mesh), 0)
            for name, spec in re.findall(
                r"(%arg\w+): \S+ \{sdy.sharding = #sdy.sharding(<.*?>)\}", text
            )
        }
        for name, operand, spec in OP.findall(text):
            before, so_far = known[operand]
            after = ShardingSpec.parse(spec, mesh)
            known[name] = after, so_far + plan_reshard(before, after, self.shape).ideal
        (results,) = re.findall(r"return (.*) :", text)
        found = [known[name] for name in results.split(", ")]
        if [spec for spec, _ in found] != [dst for _, dst in self.pairs]:
            raise AssertionError("Shardy's collectives were misread")
        return [total for _, total in found]


class DTensor:
    """The planner of `DTensor.redistribute`, by default or for the least cost."""

    def __init__(self, pairs: Sequence[Pair], shape: tuple[int, ...], least_cost: bool) -> None:
        import torch
        from torch.distributed.tensor import _redistribute
        from torch.distributed.tensor._dtensor_spec import TensorMeta

        self.planner = _redistribute
        self.mesh = _torch_mesh(pairs[0][0].mesh)
        self.shape, self.least_cost = shape, least_cost
        self.meta = TensorMeta(
            torch.Size(shape), torch.empty(shape, device="meta").stride(), torch.float32
        )
        specs = {spec: self._spec(spec) for pair in pairs for spec in pair}
        self.pairs = [(src, specs[src], specs[dst]) for src, dst in pairs]

    def _spec(self, spec: ShardingSpec) -> Any:
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor._dtensor_spec import DTensorSpec, ShardOrderEntry

        names = spec.mesh.axis_names
        placements: list[Any] = [Replicate()] * len(names)
        order = []
        for dim, cut in enumerate(spec.dim_specs):
            numbers = tuple(names.index(str(axis)) for axis in cut.axes)
            for number in numbers:
                placements[number] = Shard(dim)
            order += [ShardOrderEntry(dim, numbers)] if numbers else []
        return DTensorSpec(self.mesh, tuple(placements), self.meta, shard_order=tuple(order))

    def plan(self) -> list[Any]:
        """The steps for every pair, nothing remembered."""
        self.planner.clear_redistribute_planner_cache()
        make = self.planner._gen_transform_infos_non_cached
        return [make(src, dst, self.least_cost) for _, src, dst in self.pairs]

    def plan_again(self) -> list[Any]:
        """The same from its cache."""
        return [
            self.planner._gen_transform_infos(src, dst, self.least_cost)
            for _, src, dst in self.pairs
        ]

    def received(self) -> list[int]:
        """For each pair the bytes of its steps, on all cells."""
        return [
            _bytes_of(src, prod(self.shape), steps)
            for (src, _, _), steps in zip(self.pairs, self.plan())
        ]


def _bytes_of(src: ShardingSpec, elements: int, steps: Sequence[Any]) -> int:
    """Bytes received on all cells: gathers and exchanges along one axis of even shards."""
    local, total = elements // prod(src.grid), 0
    for step in steps:
        size = src.mesh.shape[step.mesh_dim]
        match [placement.is_shard() for placement in step.src_dst_placements]:
            case [True, False]:
                total += (size - 1) * local
                local *= size
            case [True, True]:
                total += (size - 1) * local // size
            case [False, True]:
                local //= size
    return total * src.mesh.size * 4


def _torch_mesh(mesh: DeviceMesh) -> Any:
    """The mesh on a process group that only pretends."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=mesh.size)
    return init_device_mesh("cpu", mesh.shape, mesh_dim_names=mesh.axis_names)


def peers() -> dict[str, Callable[[Sequence[Pair], tuple[int, ...]], Any]]:
    """The planners that are installed."""
    found: dict[str, Callable[[Sequence[Pair], tuple[int, ...]], Any]] = {}
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    try:
        import jaxlib.mlir  # noqa: F401

        found["Shardy"] = Shardy
    except ImportError:
        pass
    try:
        import torch.distributed.tensor  # noqa: F401

        found["DTensor"] = lambda pairs, shape: DTensor(pairs, shape, least_cost=False)
        found["DTensor min-cost"] = lambda pairs, shape: DTensor(pairs, shape, least_cost=True)
    except ImportError:
        pass
    return found

"""Baselines for conflicts: Shardy, and the greedy choice operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from benchmarks.greedy import choose
from weft.lang import Graph
from weft.lang.dtype import itemsize
from weft.layout import DeviceMesh, DimSpec, ShardingSpec
from weft.plan import Plan, propagate
from weft.plan.placed import Placed, fit
from weft.plan.propagation.shardings import Meshes
from weft.values import FrozenMap


@cache
def _context() -> Any:
    from jax.interpreters import mlir

    return mlir.make_ir_context()


def by_shardy(text: str) -> str:
    """Return a module after Shardy's propagation, run in this process."""
    from jaxlib.mlir import ir, passmanager

    with _context():
        module = ir.Module.parse(text)
        passes = passmanager.PassManager.parse("builtin.module(sdy-user-priority-propagate)")
        passes.run(module.operation)
        return str(module)


def bytes_of_shardy(graph: Graph, text: str) -> int:
    """Return the bytes that move with the shardings of Shardy.

    A partial result is combined at once, or when it is needed, whichever moves fewer bytes.
    """
    from weft.interop.mlir import parse

    main = parse(by_shardy(text)).functions["main"]
    said = dict(zip((v.name for v in main.arguments), main.argument_shardings))
    for operation in main.body:
        said |= zip((v.name for v in operation.results), operation.shardings)
    said = {name: _closed(graph, said.get(name) or "", name) for name in graph.values}
    returned = {
        place: _closed(graph, text, graph.outputs[place])
        for place, text in enumerate(main.returned_shardings)
        if text
    }
    found = propagate(_annotated(graph, said, returned))
    return min(sum(Plan.of(one).received) for one in (found, replace(found, graph=graph)))


def _closed(graph: Graph, text: str, name: str) -> str:
    """A sharding with nothing left open; where there is none, nothing is cut."""
    meshes, value = Meshes(graph), graph.values[name]
    rank = len(value.shape)
    spec = meshes.parse(
        value, text or f"<@{meshes.all[meshes.default].name}, [{', '.join(['{}'] * rank)}]>"
    )
    return str(ShardingSpec(spec.mesh, [DimSpec(dim.axes) for dim in spec.dim_specs]))


def _annotated(graph: Graph, said: Mapping[str, str], returned: Mapping[int, str]) -> Graph:
    return Graph(
        graph.inputs,
        graph.applications,
        graph.outputs,
        graph.meshes,
        said,
        returned,
        graph.operators,
        {name: value.dtype for name, value in graph.values.items()},
    )


def bytes_of_greed(graph: Graph) -> int:
    """What moves where every application is placed as is cheapest for itself."""
    return sum(_greedy(graph).received)


def _greedy(graph: Graph) -> Plan:
    meshes = Meshes(graph)
    mesh = meshes.all[meshes.default]

    def written(name: str, text: str | None) -> ShardingSpec | None:
        if text is None:
            return None
        spec = meshes.parse(graph.values[name], text)
        return ShardingSpec(mesh, [DimSpec(dim.axes) for dim in spec.dim_specs], (), spec.partial)

    specs: dict[str, ShardingSpec] = {}
    placed: list[Placed] = []
    for value in graph.inputs:
        spec = written(value.name, graph.shardings.get(value.name))
        if spec is not None:
            specs[value.name] = spec
    for number, application in enumerate(graph.applications):
        placed.append(_place(graph, number, mesh, specs.get))
        for name, needed in zip(application.operands, placed[-1].operands):
            specs.setdefault(name, _whole(needed, mesh, len(graph.values[name].shape)))
        for name, made in zip(application.results, placed[-1].results):
            said = written(name, graph.shardings.get(name))
            kept = _whole(made, mesh, made.ndim) if name in graph.outputs else made
            specs[name] = said or kept
    for name, value in graph.values.items():
        specs.setdefault(name, _whole(None, mesh, len(value.shape)))
    outputs = tuple(
        written(name, graph.output_shardings.get(place)) or specs[name]
        for place, name in enumerate(graph.outputs)
    )
    ordered = FrozenMap((name, specs[name]) for name in graph.values)
    return Plan(graph, mesh, ordered, outputs, tuple(placed))


def _place(
    graph: Graph, number: int, mesh: DeviceMesh, known: Callable[[str], ShardingSpec | None]
) -> Placed:
    application, signature = graph.applications[number], graph.signatures[number]
    operands = application.operands
    specs = [known(name) for name in operands]
    if not any(specs):
        return fit(mesh, signature, {})
    operator = graph.operators.find(application.operator)
    widths = [itemsize(graph.values[name].dtype) for name in operands]
    return choose(operator, signature, specs, widths, [operands.index(name) for name in operands])


def _whole(spec: ShardingSpec | None, mesh: DeviceMesh, rank: int) -> ShardingSpec:
    return ShardingSpec(mesh, spec.dim_specs if spec else [DimSpec()] * rank)

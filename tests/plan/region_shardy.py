"""Shardy on programs with regions: edges and groups are made, then one strategy runs."""

import re

from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import sdy
from tests.plan.programs import PASSES, context

EDGES = "sdy-manual-axes-cleanup,sdy-add-data-flow-edges"
CALLS = (
    "sdy-propagate-sharding-from-func-to-call,sdy-flatten-call-graph,"
    "sdy-import-func-calls{add-data-flow-edges-on-named-computations=true},symbol-dce"
)
"""What makes named computations of calls, and edges of those; it refuses some that had edges."""

GROUPS = "sdy-sharding-group-import"
CALL = re.compile(r"(?<!custom_)call @")
SILENT = ("sdy.data_flow_edge", "sdy.return", "stablehlo.return", "func.return")
"""What makes no value of the program."""


def shardy(text, strategy):
    """The module after the import passes and one of propagation."""
    with context():
        module = ir.Module.parse(text)
        parts = [EDGES, *[CALLS] * bool(CALL.search(text)), GROUPS, PASSES[strategy]]
        passmanager.PassManager.parse(f"builtin.module({','.join(parts)})").run(module.operation)
        return module


def shardings(module):
    """The shape and the sharding of every value of a module, in the order of the program."""
    (main,) = [op for op in module.body.operations if op.operation.name == "func.func"]
    main = main.operation
    arguments = main.regions[0].blocks[0].arguments
    said = main.attributes["arg_attrs"] if "arg_attrs" in main.attributes else [{}] * len(arguments)
    for value, attributes in zip(arguments, said):
        said_of_it = "sdy.sharding" in attributes and attributes["sdy.sharding"]
        yield shape_of(value), stripped(said_of_it or None)
    grouped = "sdy.sharding_group" in str(module)
    yield from of_block(main.regions[0].blocks[0], grouped)


def of_block(block, grouped):
    for op in block.operations:
        operation = op.operation
        if operation.name in SILENT:
            continue
        own = "mine" in operation.attributes or not grouped
        if operation.name == "sdy.sharding_constraint" and not own:
            continue  # what stands in for a value whose group has no common sharding
        named = operation.name == "sdy.named_computation"
        if operation.name.startswith(("sdy.", "stablehlo.while", "stablehlo.case", "stablehlo.if")):
            for region in operation.regions:
                for place, value in enumerate(region.blocks[0].arguments):
                    if shape_of(value) or not named:
                        yield shape_of(value), of_argument(operation, place, value)
                yield from of_block(region.blocks[0], grouped)
        for place, value in enumerate(operation.results):
            if shape_of(value) or not named:
                yield shape_of(value), of_result(operation, place, value)


def of_argument(operation, place, value):
    if operation.name == "stablehlo.while":
        return of_result(operation, place, operation.results[place])
    return of_edge(value)


def of_edge(value):
    edges = [u.owner for u in value.uses if u.owner.name == "sdy.data_flow_edge"]
    if not edges:
        return None
    attributes = edges[0].operation.attributes
    return stripped(attributes["sharding"]) if "sharding" in attributes else ""


def of_result(operation, place, value):
    edge = of_edge(value)
    if edge is not None:
        return edge
    attributes = operation.attributes
    if "sdy.sharding" in attributes:
        return stripped(sdy.TensorShardingPerValueAttr(attributes["sdy.sharding"]).shardings[place])
    return stripped(attributes["sharding"]) if "sharding" in attributes else ""


def shape_of(value):
    return tuple(ir.RankedTensorType(value.type).shape)


def stripped(attribute):
    return "" if attribute is None else str(attribute).removeprefix("#sdy.sharding")

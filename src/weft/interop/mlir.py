"""Parse StableHLO text with jaxlib into the records of `weft.interop.stablehlo`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jax.interpreters.mlir import make_ir_context
from jaxlib.mlir import ir

from weft.errors import WeftError
from weft.interop.mlir_attributes import (
    Decoder,
    combination,
    complete_attributes,
    elements,
    is_described,
    mesh_text,
)
from weft.interop.stablehlo import Function, Module, Operation, Region
from weft.lang import Value
from weft.values import Point

DEEPEST = 100
"""The deepest nesting of brackets: MLIR's parser recurses, and would crash."""

_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|//[^\n]*|->|[<({\[]|[>)}\]]', re.DOTALL)
"""Strings, comments and arrows, which are skipped, and brackets."""

_PREFIXES = ("stablehlo", "chlo", "sdy", "mhlo")
_WORD = re.compile(r"[^\[\]'\".]+")
"""A word of a name such as `params['layers'][0].kernel`."""
_LOCATION = re.compile(r'"-":(\d+):(\d+)')
"""A location in the text itself, not in the program it was generated from."""

_RESULT_SHARDINGS = ("sharding", "out_sharding", "out_shardings")
"""The attributes of `sdy` operations that hold the shardings of their results."""

_WINDOWS = "stablehlo.dynamic_reduce_window"
"""The custom call by which JAX reduces windows of sizes that are not known."""

_REGIONS = frozenset(["while", "case", "if", "manual_computation", "named_computation"])
"""The operations whose regions hold arrays; those of others, such as `reduce`, hold elements."""


def parse(text: str) -> Module:
    """Read the text of a module."""
    _check_depth(text)
    context = make_ir_context()
    context.allow_unregistered_dialects = True
    try:
        module = ir.Module.parse(text, context)
    except ir.MLIRError as error:
        raise _parse_error(error, text) from None
    except (TypeError, ValueError) as error:
        raise WeftError(f"this is not the text of a module: {error}") from None
    return _ModuleReader(module).module()


def _check_depth(text: str) -> None:
    depth = 0
    for token in _TOKENS.finditer(text):
        if token[0] in "<({[":
            depth += 1
        elif token[0] in ">)}]":
            depth = max(0, depth - 1)
        if depth > DEEPEST:
            line = text.count("\n", 0, token.start()) + 1
            raise WeftError(f"line {line}: brackets are nested more than {DEEPEST} deep")


def _parse_error(error: Any, text: str) -> WeftError:
    """Return MLIR's first diagnostic as an error, with its line."""
    if not error.error_diagnostics:
        return WeftError(f"this is not the text of a module: {error}")
    first = error.error_diagnostics[0]
    location = _LOCATION.search(str(first.location))
    if location is None:
        return WeftError(f"{first.message}, at {first.location}")
    line, column = map(int, location.groups())
    refusal = WeftError(f"line {line}, column {column}: {first.message}")
    for quoted in text.splitlines()[line - 1 : line]:
        refusal.add_note(quoted[:200])
    return refusal


class _ModuleReader:
    def __init__(self, module: Any) -> None:
        operations = [op.operation for op in module.body.operations]
        self.decoder = Decoder()
        self.mesh_ops = [op for op in operations if op.name == "sdy.mesh"]
        self.function_ops = {
            op.attributes["sym_name"].value: op for op in operations if _is_function(op)
        }

    def module(self) -> Module:
        main = self._main()
        functions: dict[str, Function] = {}
        pending = [main]
        while pending:
            name = pending.pop()
            if name not in functions:
                functions[name] = self._function(self.function_ops[name])
                pending += _callees(functions[name].body)
        meshes = [
            mesh_text(op.attributes["sym_name"].value, op.attributes["mesh"])
            for op in self.mesh_ops
        ]
        return Module((*meshes, *self.decoder.mesh_texts()), functions, main)

    def _main(self) -> str:
        """Return `main`, or else the first function that is not private, or else the first."""
        if not self.function_ops:
            raise WeftError("the module has no function with a body of one block")
        public = [
            name
            for name, op in self.function_ops.items()
            if "sym_visibility" not in op.attributes
            or op.attributes["sym_visibility"].value == "public"
        ]
        return "main" if "main" in self.function_ops else [*public, *self.function_ops][0]

    def _function(self, op: Any) -> Function:
        state = ir.AsmState(op)
        block = op.regions[0].blocks[0]
        *body, last = (inner.operation for inner in block.operations)
        return Function(
            tuple(self._value(value, state) for value in block.arguments),
            self._interface(op, "arg_attrs", len(block.arguments)),
            tuple(self._operation(inner, state) for inner in body),
            tuple(_names(last.operands, state)),
            self._interface(op, "res_attrs", len(last.operands)),
            self._interface(op, "arg_attrs", len(block.arguments), "jax.global_constant"),
            tuple(map(label, block.arguments)),
        )

    def _interface(
        self, op: Any, which: str, count: int, key: str = "sdy.sharding"
    ) -> tuple[str, ...]:
        """Return an attribute of a function's arguments or results, the sharding by default."""
        if which not in op.attributes:
            return ("",) * count
        return tuple(
            self.decoder.value(each[key]) if key in each else "" for each in op.attributes[which]
        )

    def _value(self, value: Any, state: Any) -> Value:
        return Value(value.get_name(state)[1:], *self.decoder.type(value.type))

    def _operation(self, op: Any, state: Any) -> Operation:
        """Read an operation; an error names its location.

        MLIR verifies only the dialects that it knows.
        """
        try:
            return self._read(op, state)
        except WeftError:
            raise
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise WeftError(f"{_location(op)}{op.name} cannot be read: {reason}") from error

    def _read(self, op: Any, state: Any) -> Operation:
        dialect, _, name = op.name.partition(".")
        results = tuple(self._value(value, state) for value in op.results)
        attributes = {
            key: self.decoder.value(op.attributes[key])
            for key in op.attributes
            if (name, key) != ("constant", "value")
        }
        if name == "constant":
            value = elements(op)
            attributes |= {} if value is None else {"value": value}
        callee = attributes.get({"call": "callee", "composite": "decomposition"}.get(name, ""), "")
        shapes = tuple(self.decoder.type(value.type)[0] for value in op.operands)
        named = name if dialect in _PREFIXES else op.name
        if attributes.get("call_target_name") == _WINDOWS:
            named = _WINDOWS.partition(".")[2]
            (computation,) = attributes["called_computations"]
            attributes |= combination(self.function_ops[computation].regions[0].blocks[0])
        is_read = named in _REGIONS and all(len(region.blocks) == 1 for region in op.regions)
        complete = complete_attributes(op, named, attributes, shapes, results)
        is_opaque = len(op.regions) and not is_read and not is_described(complete)
        return Operation(
            named,
            tuple(_names(op.operands, state)),
            shapes,
            self._captured(op, state) if is_opaque else {},
            results,
            complete,
            _result_shardings(dialect, attributes),
            callee if callee in self.function_ops else "",
            tuple(self._region(region, state) for region in op.regions) if is_read else (),
        )

    def _region(self, region: Any, state: Any) -> Region:
        block = region.blocks[0]
        *body, last = (inner.operation for inner in block.operations)
        return Region(
            tuple(self._value(value, state) for value in block.arguments),
            tuple(self._operation(inner, state) for inner in body),
            tuple(_names(last.operands, state)),
        )

    def _captured(self, op: Any, state: Any) -> dict[str, Point]:
        """Return the values that regions use and do not define; names are never shadowed."""
        inside, used = set[str](), dict[str, Any]()
        for block in _blocks(op):
            inside.update(_names(block.arguments, state))
            for inner in block.operations:
                inside.update(_names(inner.operation.results, state))
                used.update(zip(_names(inner.operation.operands, state), inner.operation.operands))
        return {
            name: self.decoder.type(value.type)[0]
            for name, value in used.items()
            if name not in inside
        }


def _callees(body: Iterable[Operation]) -> Iterator[str]:
    """Yield the functions that operations call, at any depth."""
    for op in body:
        if op.callee:
            yield op.callee
        for region in op.regions:
            yield from _callees(region.body)


def _location(op: Any) -> str:
    """Return the location of an operation in the text, as the start of a message."""
    location = _LOCATION.search(str(op.location))
    return f"line {location[1]}, column {location[2]}: " if location else ""


def label(argument: Any) -> str:
    """Return the name that JAX gave an argument, with dots between its words."""
    text = str(argument.location).removeprefix("loc(").removesuffix(")")
    is_name = text.startswith('"') and not _LOCATION.match(text)
    return ".".join(_WORD.findall(text)) if is_name else ""


def _is_function(op: Any) -> bool:
    return op.name == "func.func" and len(op.regions[0].blocks) == 1


def _names(values: Iterable[Any], state: Any) -> Iterator[str]:
    return (value.get_name(state)[1:] for value in values)


def _blocks(op: Any) -> Iterator[Any]:
    """Yield the blocks inside, at any depth."""
    for region in op.regions:
        for block in region.blocks:
            yield block
            for inner in block.operations:
                yield from _blocks(inner.operation)


def _result_shardings(dialect: str, attributes: Mapping[str, Any]) -> tuple[str, ...]:
    shardings = attributes.get("sdy.sharding", ())
    if dialect == "sdy":
        own = (attributes[key] for key in _RESULT_SHARDINGS if key in attributes)
        shardings = next(own, shardings)
    return (shardings,) if isinstance(shardings, str) else shardings

"""An operator applied to tensors at once: placed, prepared, run; what can be remembered is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from weft.errors import WeftError
from weft.lang import OPERATORS, Block, Operator, Signature
from weft.lang.block import Attributes
from weft.layout import ShardingSpec
from weft.plan.infer import choose
from weft.run.arrays import Array
from weft.run.blocks import run_block
from weft.run.cells import Shards
from weft.run.prepared import Prepared, deliver_all, prepare
from weft.values import FrozenMap, Point


class Operand(NamedTuple):
    """A tensor as an operator sees it."""

    shape: Point
    spec: ShardingSpec | None
    shards: Shards
    itemsize: int
    name: str


class Made(NamedTuple):
    """A result: how it lies, and its shards."""

    shape: Point
    spec: ShardingSpec | None
    shards: Shards


@dataclass(slots=True)
class Whole:
    """An application to arrays that are not cut."""

    operator: Operator
    block: Block
    slices: Sequence[tuple[slice, ...] | None]
    """What the operator reads of each operand; None for all of it."""

    @classmethod
    def of(cls, operator: Operator, line: Signature, attributes: Attributes) -> Whole:
        """An application to whole arrays."""
        block = Block(None, line, attributes, line.space)
        slices = [
            None if box.shape == shape else box.slices()
            for box, shape in zip(block.operands, line.operand_shapes)
        ]
        return cls(operator, block, slices)

    def run(self, xp: Any, operands: Sequence[Shards]) -> list[list[Array]]:
        """The results, each as one shard."""
        if self.block.xp is not xp:
            self.block = replace(self.block, xp=xp)
        arrays = [
            array if part is None else array[part]
            for (array, *_), part in zip(operands, self.slices)
        ]
        return [[array] for array in run_block(self.operator, self.block, arrays)]

    @property
    def shapes(self) -> tuple[Point, ...]:
        """The shapes of the results."""
        return self.block.signature.result_shapes

    @property
    def specs(self) -> Sequence[None]:
        """They lie on no mesh."""
        return (None,) * len(self.shapes)


_PREPARED: dict[object, Prepared | Whole] = {}
_MOST = 4096


def run_operator(
    name: str, attributes: Attributes, xp: Any, operands: Sequence[Operand]
) -> list[Made]:
    """The results of an operator."""
    key = (
        name,
        tuple(attributes.items()),
        tuple([(operand[0], operand[1], operand[3]) for operand in operands]),
    )
    try:
        prepared = _PREPARED[key]
    except KeyError:
        prepared = _remember(key, _prepare(name, attributes, operands))
    results = prepared.run(xp, [operand.shards for operand in operands])
    return list(map(Made, prepared.shapes, prepared.specs, results))


def _remember(key: object, prepared: Prepared | Whole) -> Prepared | Whole:
    if len(_PREPARED) >= _MOST:
        _PREPARED.clear()
    _PREPARED[key] = prepared
    return prepared


def _prepare(name: str, attributes: Attributes, operands: Sequence[Operand]) -> Prepared | Whole:
    operator = OPERATORS.find(name)
    line = operator.sign([operand.shape for operand in operands], attributes)
    meshes = {operand.spec.mesh for operand in operands if operand.spec is not None}
    frozen = FrozenMap(attributes.items())
    if not meshes:
        return Whole.of(operator, line, frozen)
    if len(meshes) > 1:
        said = " and ".join(f"{o.name} on {o.spec.mesh}" for o in operands if o.spec is not None)
        raise WeftError(f"the operands of {name} lie on different meshes: {said}")
    specs = [operand.spec for operand in operands]
    itemsizes = [operand.itemsize for operand in operands]
    placed = choose(operator, line, specs, itemsizes)
    names = [
        f"operand {number}, {operand.name}, {list(operand.shape)} {operand.spec or ''}".rstrip()
        for number, operand in enumerate(operands)
    ]
    return prepare(operator, frozen, placed, deliver_all(placed, specs, itemsizes), names)

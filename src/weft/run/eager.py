"""An operator applied to tensors at once: placed, prepared, run; what can be remembered is.

What a tensor is apart from its numbers is its `Kind`, of which there is one for each shape,
sharding, dtype and library. What an operator does to kinds is worked out once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

from weft.errors import WeftError
from weft.lang import OPERATORS, Block, Operator, Signature
from weft.lang.block import Attributes
from weft.lang.dtype import dtype_name
from weft.layout import ShardingSpec
from weft.plan.infer import choose
from weft.run.arrays import Array
from weft.run.blocks import check_dtypes, run_block
from weft.run.cells import Shards
from weft.run.prepared import Prepared, deliver_all, prepare
from weft.run.threads import LARGE
from weft.values import FrozenMap, Point


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """What tensors have in common whose numbers alone differ; each is equal to itself alone."""

    shape: Point
    spec: ShardingSpec | None
    dtype: Any
    """The library's own."""
    xp: Any

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return int(self.dtype.itemsize)

    def __str__(self) -> str:
        return f"{dtype_name(self.dtype)}{list(self.shape)} {self.spec or ''}".rstrip()


@lru_cache(maxsize=16384)
def kind_of(shape: Point, spec: ShardingSpec | None, dtype: Any, xp: Any) -> Kind:
    """The kind of a shape, a sharding, a dtype and a library."""
    return Kind(shape, spec, dtype, xp)


@dataclass(slots=True)
class Ready:
    """An operator and the kinds of its operands, with all worked out."""

    kernel: Prepared | Whole | Direct
    xp: Any
    specs: Sequence[ShardingSpec | None]
    shapes: Sequence[Point]
    name: str
    dtypes: Sequence[str]
    """The dtypes of the results; one stands for all."""
    kinds: dict[Any, list[Kind]] = field(default_factory=dict)

    def run(self, operands: Sequence[Shards]) -> list[tuple[Kind, Shards]]:
        """The results: their kinds and their shards."""
        results = self.kernel.run(self.xp, operands)
        key = tuple([shards[0].dtype for shards in results])
        kinds = self.kinds.get(key)
        if kinds is None:
            check_dtypes(self.name, [shards[0] for shards in results], self.dtypes)
            kinds = self.kinds[key] = [
                kind_of(shape, spec, shards[0].dtype, self.xp)
                for shape, spec, shards in zip(self.shapes, self.specs, results)
            ]
        return list(zip(kinds, results))


@dataclass(slots=True)
class Whole:
    """An application to arrays that are not cut."""

    operator: Operator
    block: Block
    slices: Sequence[tuple[slice, ...] | None]
    """What the operator reads of each operand; None for all of it."""

    @classmethod
    def of(cls, operator: Operator, line: Signature, attributes: Attributes, xp: Any) -> Whole:
        """An application to whole arrays."""
        block = Block(xp, line, attributes, line.space)
        slices = [
            None if box.shape == shape else box.slices()
            for box, shape in zip(block.operands, line.operand_shapes)
        ]
        return cls(operator, block, slices)

    def run(self, xp: Any, operands: Sequence[Shards]) -> list[list[Array]]:
        """The results, each as one shard."""
        pairs = zip(operands, self.slices)
        arrays = [shards[0] if part is None else shards[0][part] for shards, part in pairs]
        return [[array] for array in run_block(self.operator, self.block, arrays)]


@dataclass(slots=True)
class Direct:
    """An application with one result and small boxes, whose operands lie where they are needed."""

    kernel: Any
    blocks: list[Block]
    leaders: Point | None
    """None where every cell computes its own box."""

    def run(self, xp: Any, operands: Sequence[Shards]) -> list[list[Array]]:
        """The shards of the result."""
        kernel, count = self.kernel, len(self.blocks)
        each = [s if len(s) == count else [s[0]] * count for s in operands]
        made: list[Array] = []
        if self.leaders is None:
            made = list(map(kernel, self.blocks, *each))
        else:
            for rank, leader in enumerate(self.leaders):
                if leader != rank:
                    made.append(made[leader])
                else:
                    made.append(kernel(self.blocks[rank], *[shards[rank] for shards in each]))
        return [[array for (array,) in made] if isinstance(made[0], tuple) else made]


Key: TypeAlias = tuple[Any, ...]
_READY: dict[Key, Ready] = {}
_MOST = 4096


def run_operator(
    name: str,
    attributes: Attributes,
    kinds: Sequence[Kind],
    operands: Sequence[Shards],
    names: Sequence[str],
) -> list[tuple[Kind, Shards]]:
    """The results of an operator: their kinds and their shards."""
    key = (name, *kinds, *attributes.items()) if attributes else (name, *kinds)
    alike: Point = ()
    if len(operands) > 1 and len(set(map(id, operands))) < len(operands):
        places = list(map(id, operands))
        alike = tuple(map(places.index, places))
        key += (alike,)
    ready = _READY.get(key)
    if ready is not None:
        return ready.run(operands)
    ready = _prepare(name, attributes, kinds, names, alike)
    results = ready.run(operands)
    if len(_READY) >= _MOST:
        _READY.clear()
    _READY[key] = _direct(ready)
    return results


def _prepare(
    name: str,
    attributes: Attributes,
    kinds: Sequence[Kind],
    names: Sequence[str],
    alike: Point,
) -> Ready:
    operator, xp = OPERATORS.find(name), kinds[0].xp
    line = operator.sign([kind.shape for kind in kinds], attributes)
    given = [dtype_name(kind.dtype) for kind in kinds]
    try:
        dtypes = operator.dtypes(given, attributes)
    except WeftError as error:
        error.add_note(f"while applying {name} to {', '.join(map(str, kinds))}")
        raise
    meshes = {kind.spec.mesh for kind in kinds if kind.spec is not None}
    frozen = FrozenMap(attributes.items())
    if not meshes:
        whole = Whole.of(operator, line, frozen, xp)
        none = (None,) * len(line.result_shapes)
        return Ready(whole, xp, none, line.result_shapes, name, dtypes)
    pairs = list(zip(names, kinds))
    if len(meshes) > 1:
        said = " and ".join(f"{n or k} on {k.spec.mesh}" for n, k in pairs if k.spec is not None)
        raise WeftError(f"the operands of {name} lie on different meshes: {said}")
    specs, itemsizes = [kind.spec for kind in kinds], [kind.itemsize for kind in kinds]
    placed = choose(operator, line, specs, itemsizes, alike, given, dtypes)
    called = [f"operand {n}, {f'{name}: ' * bool(name)}{k}" for n, (name, k) in enumerate(pairs)]
    prepared = prepare(operator, frozen, placed, deliver_all(placed, specs, itemsizes), called)
    return Ready(prepared, xp, placed.results, line.result_shapes, name, dtypes)


def _direct(ready: Ready) -> Ready:
    """The same without what this application does not need."""
    prepared = ready.kernel
    if not isinstance(prepared, Prepared) or len(ready.shapes) > 1:
        return ready
    moving = any(
        d.reshard or d.fetch or any(d.slices) or any(d.hidden) for d in prepared.deliveries
    )
    if moving or max(box.size for box in prepared.placed.boxes) >= LARGE:
        return ready
    leaders = prepared.leaders
    alone = leaders == tuple(range(len(leaders)))
    blocks = prepared.blocks_for(ready.xp)
    ready.kernel = Direct(prepared.operator.kernel, blocks, None if alone else leaders)
    return ready

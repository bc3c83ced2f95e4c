"""Fusion: a producer and its only consumer become one operator, without a value between them.

The rows by which the consumer reads the value are substituted into the producer's: the projections
compose. The fused operator is named `producer=>consumer` and has the attributes of both, so that a
graph with fused operators is a graph like any other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from weft.draw import clip
from weft.errors import WeftError
from weft.lang.graph import Application, Graph, Value
from weft.lang.kernel import Attributes, Block, Kernel
from weft.lang.monoid import combine
from weft.lang.notation import CUSTOM, Notation, Row
from weft.lang.operator import Library, Operator
from weft.lang.operators.contract import sum_of_products
from weft.lang.region import EDGES
from weft.lang.signature import Signature
from weft.lang.struct_array import concatenate
from weft.space import ZRange
from weft.values import FrozenMap, Point

ARROW = "=>"
FIRST = "first"
"""The attribute with the number of the producer's operands."""
LARGE = 1 << 18
"""Up to so many elements, the value between producer and consumer is computed in one piece."""
MOST_FUSED = 100
"""The most operators in one: signing a fused operator recurses once for each."""
MAX_FUSED = 16
"""The most operators that plans and searches fuse into one."""
_NUMBER = re.compile(r"[0-9]{1,4}")
SHORTCUTS: dict[str, Kernel] = {"prod_of=>sum_dim": sum_of_products}
"""Fused operators that have a kernel of their own."""


def fused_name(producer: str, consumer: str, operand: int) -> str:
    """Return the name of a fused operator; `operand` is the consumer's operand that is fused.

    >>> fused_name("linear", "relu", 0), fused_name("matmul", "add", 1)
    ('linear=>relu', 'matmul=>add@1')
    """
    return f"{producer}{ARROW}{consumer}" + f"@{operand}" * (operand > 0)


def fused_operator(name: str, operators: Library) -> Operator:
    """Return the operator of a fused name; a consumer is never fused itself.

    >>> from weft.lang import OPERATORS
    >>> both = fused_operator("linear=>relu", OPERATORS)
    >>> print(both.sign([(8, 16), (16, 4), (4,)], {"first": 3}))
    i0 k, k i1, i1 -> i0 i1  custom: k  {i0=8, i1=4, k=16}
    """
    pair = _pair_of(name, operators)
    kernel = SHORTCUTS.get(name, pair.kernel)
    return Operator(
        name, pair.sign, kernel, dtypes=pair.dtypes, count=pair.count_box, attributes=None
    )


def _pair_of(name: str, operators: Library) -> _FusedPair:
    producer, _, rest = name.rpartition(ARROW)
    consumer, at, operand = rest.partition("@")
    if at and not _NUMBER.fullmatch(operand):
        raise WeftError(
            f"{clip(name, 80)} is not a fused operator: expected an operand number after @"
        )
    return _FusedPair(operators.find(producer), operators.find(consumer), int(operand or 0))


class _Parts(NamedTuple):
    """The two applications inside a fused one."""

    first: Signature
    second: Signature
    first_attributes: Attributes
    second_attributes: Attributes
    names: Mapping[str, str]
    """The names in the fused line of index dimensions that only the producer has."""


class _FusedPair(NamedTuple):
    producer: Operator
    consumer: Operator
    operand: int

    def sign(self, shapes: Sequence[Point], attributes: Attributes) -> Signature:
        """Return the signature of both together."""
        parts, count = self.parts(tuple(shapes), FrozenMap(attributes.items())), attributes[FIRST]
        first, second = parts.first.notation, parts.second.notation
        put = _Composition(parts, self.operand)
        rows = [[put.row(row) for row in tensor] for tensor in first.operands]
        others = [t for n, t in enumerate(second.operands) if n != self.operand]
        stays = self._stays(parts)
        once = {*first.once, *range(count, len(shapes))} if stays else set[int]()
        inner = {
            parts.names[name]: monoid if stays else CUSTOM for name, monoid in first.reduced.items()
        }
        line = Notation([*rows, *others], second.results, {**second.reduced, **inner}, once)
        sizes = {parts.names[n]: s for n, s in parts.first.sizes.items() if n in parts.names}
        lost = next(
            (name for name in {**parts.second.sizes, **sizes} if name not in line.dims), None
        )
        if lost is not None:
            both = f"{self.producer.name} and {self.consumer.name}"
            raise WeftError(f"{both} cannot be fused: no array has the dimension '{lost}' then")
        return Signature(line, shapes, {**parts.second.sizes, **sizes})

    def _stays(self, parts: _Parts) -> bool:
        """Return whether the producer's partial results may stay partial through the consumer."""
        monoids = set(parts.first.notation.reduced.values())
        if len(monoids) != 1 or parts.second.reduced:
            return False
        every = range(len(parts.second.notation.operands))
        kinds = ["uint8"] * len(every)
        try:
            results = self.consumer.dtypes(kinds, parts.second_attributes)
        except WeftError:  # it is never applied to integers
            kinds, results = [], []
        groups = self.consumer.groups(monoids.pop(), parts.second, kinds, results)
        return any(group is ... or set(group) == set(every) for group in groups)

    def parts(self, shapes: tuple[Point, ...], attributes: FrozenMap[str, Any]) -> _Parts:
        """Return the two applications."""
        return _parts(self, shapes, attributes)

    def kernel(self, block: Block, *operands: Any) -> Any:
        """Run the consumer's kernel on the result of the producer's, for one box.

        If the value between would be much larger than all others, the box is cut in halves.
        """
        first, second, count = _blocks(self, block)
        sizes = [box.size for box in (*block.operands, *block.results)]
        if second.operands[self.operand].size > max(LARGE, 4 * sum(sizes)):
            halves = halve(block)
            if halves is not None:
                return halves.run(self.kernel, operands)
        assert self.producer.kernel is not None
        assert self.consumer.kernel is not None
        between = self.producer.kernel(first, *operands[:count])
        between = between[0] if isinstance(between, tuple) else between
        box, read = first.results[0], second.operands[self.operand]
        if box != read:  # the producer computes all of a dimension that it cannot cut
            between = between[read.slices(box.start)]
        others = list(operands[count:])
        others.insert(self.operand, between)
        return self.consumer.kernel(second, *others)

    def count_box(self, signature: Signature, box: ZRange, attributes: Attributes) -> int:
        """Count the operations of both for a box; overlaps of the producer count in each."""
        first, second, _ = _split(self, Block(None, signature, attributes, box))
        return sum(
            operator.count_flops(part.signature, part.box, part.attributes)
            for operator, part in ((self.producer, first), (self.consumer, second))
        )

    def dtypes(self, dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
        """Return the dtypes of the consumer's results."""
        count = attributes[FIRST]
        between = self.producer.dtypes(dtypes[:count], part_of(attributes, 1))[0]
        others = list(dtypes[count:])
        others.insert(self.operand, between)
        return self.consumer.dtypes(others, part_of(attributes, 2))


def part_of(attributes: Attributes, part: int) -> FrozenMap[str, Any]:
    """Return the attributes of the producer, 1, or the consumer, 2.

    >>> part_of({"first": 1, "1.dtype": "int8", "2.keepdims": True}, 2)
    {'keepdims': True}
    """
    start = f"{part}."
    return FrozenMap(
        (key.removeprefix(start), value)
        for key, value in attributes.items()
        if key.startswith(start)
    )


@lru_cache(maxsize=4096)
def _parts(pair: _FusedPair, shapes: tuple[Point, ...], attributes: FrozenMap[str, Any]) -> _Parts:
    count = attributes[FIRST]
    one, two = part_of(attributes, 1), part_of(attributes, 2)
    first = pair.producer.sign(shapes[:count], one)
    if len(first.result_shapes) != 1:
        raise WeftError(f"{pair.producer.name} has {len(first.result_shapes)} results, expected 1")
    others = list(shapes[count:])
    others.insert(pair.operand, first.result_shapes[0])
    second = pair.consumer.sign(others, two)
    kept = {name for row in first.notation.results[0] for name in row.dims}
    taken, names = set(second.sizes), dict[str, str]()
    for name in first.sizes:
        if name not in kept:
            free = name
            while free in taken:
                free += "_"
            taken.add(free)
            names[name] = free
    return _Parts(first, second, one, two, names)


class _Composition:
    """The producer's rows with the consumer's rows substituted."""

    def __init__(self, parts: _Parts, operand: int) -> None:
        rows = parts.first.notation.results[0]
        read = parts.second.notation.operands[operand]
        self.names = parts.names
        self.put: dict[str, Row] = {}
        for row, into in zip(rows, read):
            if row.plain is None or row.plain in self.put:
                raise WeftError(f"a result '{row}' cannot be fused")
            is_whole = row.plain in parts.first.notation.whole
            if is_whole and parts.second.sizes.get(str(into.plain)) != parts.first.sizes[row.plain]:
                raise WeftError(
                    f"'[{row}]' cannot be cut, and is read as '{into}': it cannot be fused"
                )
            self.put[row.plain] = into._replace(whole=into.whole or is_whole)

    def row(self, row: Row) -> Row:
        if row.plain is not None:
            inner = self.put.get(row.plain)
            return Row(((self.names[row.plain], 1),), whole=row.whole) if inner is None else inner
        if row.divisor != 1:
            raise WeftError(f"'{row}' cannot be fused: it is dilated")
        terms: list[tuple[str, int]] = []
        for name, a in row.terms:
            inner = self.put.get(name)
            if inner is not None and (inner.plain is None or inner.whole):
                raise WeftError(
                    f"'{row}' and '{inner}' cannot be fused: neither is a plain dimension"
                )
            into = self.names[name] if inner is None else inner.plain
            terms.append((str(into), a))
        return row._replace(terms=tuple(terms))


@lru_cache(maxsize=4096)
def _blocks(pair: _FusedPair, block: Block) -> tuple[Block, Block, int]:
    return _split(pair, block)


def _split(pair: _FusedPair, block: Block) -> tuple[Block, Block, int]:
    """Return the blocks of the producer and the consumer in a block of both."""
    attributes = FrozenMap(block.attributes.items())
    parts = pair.parts(block.signature.operand_shapes, attributes)
    spans = {name: block.span(name) for name in block.signature.sizes}
    second = Block(
        block.xp,
        parts.second,
        parts.second_attributes,
        _box([spans[n] for n in parts.second.sizes]),
    )
    between = second.operands[pair.operand]
    rows = parts.first.notation.results[0]
    whole = parts.first.notation.whole
    ranges = {
        str(row.plain): range(low, high)
        for row, low, high in zip(rows, between.start, between.stop)
    }
    ranges |= {name: range(parts.first.sizes[name]) for name in ranges if name in whole}
    own = [ranges[n] if n in ranges else spans[parts.names[n]] for n in parts.first.sizes]
    first = Block(block.xp, parts.first, parts.first_attributes, _box(own))
    return first, second, attributes[FIRST]


def _box(spans: Sequence[range]) -> ZRange:
    return ZRange([span.start for span in spans], [span.stop for span in spans])


def fusable(graph: Graph) -> list[str]:
    """Return the values worth fusing: used once, not returned, without a sharding.

    Their producers and consumers have kernels, their lines compose, and it pays (`pays`).
    """
    users, library = users_of(graph), Library(graph.operators)
    kept, values = {*graph.outputs, *graph.shardings}, []
    lines = dict(zip(map(id, graph.applications), graph.signatures))
    for producer in graph.applications:
        for name in producer.results:
            if len(users[name]) != 1 or name in kept:
                continue
            if pays(lines[id(producer)], lines[id(users[name][0])]):
                try:
                    join(library, graph.values, producer, users[name][0], name)
                except WeftError:
                    continue
                values.append(name)
    return values


def pays(producer: Signature, consumer: Signature) -> bool:
    """Return whether one of the two reduces nothing, so that the value between is not stored.

    Chains of pointwise operators pay, and so does one after a product or before a sum. Two products
    in one would need the value between them.

    >>> product = Signature.of("m k, k n -> m n  sum: k", [(8, 4), (4, 2)])
    >>> pays(product, Signature.of("m n -> m n", [(8, 2)])), pays(product, product)
    (True, False)
    """
    lines = (producer, consumer)
    return not all(line.reduced or line.notation.whole or line.fixed for line in lines)


def users_of(graph: Graph) -> dict[str, list[Application]]:
    """Return for every value the applications that read it, once for each operand."""
    users: dict[str, list[Application]] = {name: [] for name in graph.values}
    for application in graph.applications:
        for name in application.operands:
            users[name].append(application)
    return users


def join(
    library: Library,
    values: Mapping[str, Value],
    producer: Application,
    consumer: Application,
    value: str,
) -> tuple[Application, Signature]:
    """Return the producer and the consumer of a value as one application, with its signature.

    The fused operator is added to the library. The value must be used nowhere else.
    """
    if len(producer.results) != 1:
        raise WeftError(f"{value} is used elsewhere and cannot be fused")
    if ARROW in consumer.operator:
        raise WeftError(f"{consumer.operator} is already fused: fuse the first operators first")
    if producer.operator.count(ARROW) + 2 > MOST_FUSED:
        raise WeftError(f"{value} cannot be fused: at most {MOST_FUSED} operators become one")
    for part in (producer, consumer):
        if part.operator in EDGES:
            raise WeftError(f"{part.operator} has edges and cannot be fused")
        if library.find(part.operator).kernel is None or part.regions:
            raise WeftError(f"{part.operator} has no kernel and cannot be fused")
    name = fused_name(producer.operator, consumer.operator, consumer.operands.index(value))
    attributes = {FIRST: len(producer.operands)}
    attributes |= {f"1.{key}": v for key, v in producer.attributes.items()}
    attributes |= {f"2.{key}": v for key, v in consumer.attributes.items()}
    others = tuple(operand for operand in consumer.operands if operand != value)
    both = Application(
        name, (*producer.operands, *others), consumer.results, FrozenMap(attributes.items())
    )
    if name not in library:
        library[name] = fused_operator(name, library)
    shapes = [values[operand].shape for operand in both.operands]
    return both, library[name].sign(shapes, both.attributes)


def own_names(library: Library, both: Application, line: Signature) -> Mapping[str, str]:
    """Return the names in a fused line of index dimensions that only the producer has."""
    parts = _pair_of(both.operator, library).parts(
        line.operand_shapes, FrozenMap(both.attributes.items())
    )
    return parts.names


def restrict(library: Library, name: str, block: Block) -> tuple[ZRange, ZRange]:
    """Return the boxes of the producer and of the consumer in a box of a fused operator."""
    first, second, _ = _split(_pair_of(name, library), block)
    return first.box, second.box


def is_uneven(library: Library, name: str) -> bool:
    """Whether an operator, or a part of a fused one, counts the operations of boxes by itself."""
    first, *rest = name.split(ARROW)
    parts = (first, *(part.partition("@")[0] for part in rest))
    return any(library.find(part).count is not None for part in parts)


def work_in(
    library: Library, name: str, signature: Signature, box: ZRange, attributes: Attributes
) -> dict[str, int]:
    """Return the operations of a box by operator: those of a fused operator by its parts.

    >>> from weft.lang import OPERATORS
    >>> line = OPERATORS["relu"].sign([(8, 4)])
    >>> work_in(OPERATORS, "relu", line, line.space, {})
    {'relu': 32}
    """
    if ARROW not in name:
        return {name: library.find(name).count_flops(signature, box, attributes)}
    pair, found = _pair_of(name, library), dict[str, int]()
    first, second, _ = _split(pair, Block(None, signature, attributes, box))
    for operator, part in ((pair.producer, first), (pair.consumer, second)):
        more = work_in(library, operator.name, part.signature, part.box, part.attributes)
        for each, flops in more.items():
            found[each] = found.get(each, 0) + flops
    return found


def fuse(graph: Graph, value: str) -> Graph:
    """Return the graph in which the producer of a value and its only consumer are one.

    >>> from weft import ops, trace
    >>> graph = trace(lambda x, w, b: ops.relu(ops.linear(x, w, b)), (8, 16), (16, 4), (4,))
    >>> print(fuse(graph, "linear"))
    x: float32[8, 16]
    w: float32[16, 4]
    b: float32[4]
    relu: float32[8, 4] = linear=>relu(x, w, b, first=3)
    return relu
    """
    producer = next((a for a in graph.applications if value in a.results), None)
    users = [a for a in graph.applications if value in a.operands]
    if producer is None or len(users) != 1 or users[0].operands.count(value) != 1:
        raise WeftError(f"{value} is not computed and used exactly once, and cannot be fused")
    if value in graph.outputs or value in graph.shardings:
        raise WeftError(f"{value} is used elsewhere and cannot be fused")
    (consumer,) = users
    both, _ = join(Library(graph.operators), graph.values, producer, consumer, value)
    applications = [
        both if application is consumer else application
        for application in graph.applications
        if application is not producer
    ]
    return with_applications(graph, applications)


def with_applications(
    graph: Graph, applications: Iterable[Application], dtypes: Mapping[str, str] | None = None
) -> Graph:
    """Return the graph with other applications; `dtypes` if they make other values."""
    new = list(applications)
    return Graph(
        graph.inputs,
        new,
        graph.outputs,
        graph.meshes,
        graph.shardings,
        graph.output_shardings,
        with_fused(graph.operators, (application.operator for application in new)),
        dtypes or {name: value.dtype for name, value in graph.values.items()},
        graph.parameters,
        graph.is_region,
        graph.conditions,
    )


def with_fused(operators: Library, names: Iterable[str]) -> Library:
    """Return a library that has the fused operators of those names as well."""
    new = [name for name in dict.fromkeys(names) if ARROW in name and name not in operators]
    if not new:
        return operators
    library = Library(operators)
    for name in new:
        parts = name.split(ARROW)
        if len(parts) > MOST_FUSED:
            raise WeftError(
                f"{clip(name, 80)} fuses {len(parts)} operators; at most {MOST_FUSED} become one"
            )
        for count in range(2, len(parts) + 1):
            front = ARROW.join(parts[:count])
            if front not in library:
                library[front] = fused_operator(front, library)
    return library


@dataclass(frozen=True, slots=True)
class Halves:
    """Two blocks that are one together: their results are concatenated, or combined."""

    whole: Block
    parts: tuple[Block, Block]
    monoid: str
    """The monoid that combines the results; empty where they are concatenated."""
    axes: tuple[int, ...]
    """The axis along which each result is concatenated."""

    def run(self, kernel: Kernel, operands: Sequence[Any]) -> Any:
        """Run a kernel on both halves, and join the results."""
        results = []
        for part in self.parts:
            boxes = zip(operands, part.operands, self.whole.operands)
            inputs = [x[_within(box, have)] for x, box, have in boxes]
            result = kernel(part, *inputs)
            results.append(tuple(result) if isinstance(result, tuple | list) else (result,))
        joined = [self._join(n, pair) for n, pair in enumerate(zip(*results))]
        return joined[0] if len(joined) == 1 else tuple(joined)

    def _join(self, number: int, pair: Sequence[Any]) -> Any:
        xp = self.whole.xp
        if self.monoid:
            return combine(xp, self.monoid, pair)
        return concatenate(xp, pair, self.axes[number])


def _within(box: ZRange, have: ZRange) -> tuple[slice, ...]:
    return box.slices(box.start if box.is_empty else have.start)


def halve(block: Block) -> Halves | None:
    """Cut a block in two along the longest dimension that can be cut; None if there is none.

    Kernels use it that would need too much memory for all of a box.

    >>> from weft.lang import OPERATORS
    >>> line = OPERATORS["matmul"].sign([(8, 16), (16, 4)])
    >>> halves = halve(Block(None, line, {}, line.space))
    >>> print(*(part.box for part in halves.parts), halves.monoid)
    [0:8, 0:4, 0:8] [0:8, 0:4, 8:16] sum
    """
    for name in sorted(block.signature.sizes, key=lambda name: -len(block.span(name))):
        if len(block.span(name)) < 2:
            return None
        if name in block.signature.fixed:
            continue
        monoid, axes = block.signature.notation.reduced.get(name, ""), _axes(block, name)
        may_add = monoid and name in block.signature.reduced and not block.signature.notation.once
        if may_add or (not monoid and axes is not None):
            return Halves(block, _cut_at_middle(block, name), monoid, axes or ())
    return None


def _axes(block: Block, name: str) -> tuple[int, ...] | None:
    """Return the axis of an index dimension in each result; None unless it is one plain axis."""
    result = []
    for rows in block.signature.notation.results:
        axes = [axis for axis, row in enumerate(rows) if name in row.dims]
        if len(axes) != 1 or rows[axes[0]].plain is None:
            return None
        result.append(axes[0])
    return tuple(result)


def _cut_at_middle(block: Block, name: str) -> tuple[Block, Block]:
    dim = list(block.signature.sizes).index(name)
    low, high = block.box.start[dim], block.box.stop[dim]
    start, stop = list(block.box.start), list(block.box.stop)
    stop[dim] = start[dim] = (low + high) // 2
    boxes = ZRange(block.box.start, stop), ZRange(start, block.box.stop)
    first, second = (Block(block.xp, block.signature, block.attributes, box) for box in boxes)
    return first, second

"""How elements of an operand and of a result are related, taken apart into independent components.

The dimensions of the two tensors that share an index dimension stand in one component: a
convolution has one for its channels, one for its features, one for rows and one for columns. Pairs
of elements are related where they are in all components, so nothing larger is ever written down.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from weft.ckks.packing import Integers
from weft.errors import WeftError
from weft.lang import Row, Signature
from weft.values import Point

Rows = tuple[Row, ...]


class Side(NamedTuple):
    """The dimensions of one tensor that are in a component, with its coordinates at all points."""

    dims: Point
    sizes: Point
    coordinates: tuple[Integers, ...]

    @property
    def numbers(self) -> Integers:
        """The coordinates as one number, counted row by row."""
        number = np.zeros((), np.int64)
        for size, at in zip(self.sizes, self.coordinates):
            number = number * size + at
        return number


@dataclass(frozen=True, slots=True, eq=False)
class Component:
    """Dimensions that hang together: all points of their index space where both tensors have one.

    `address` is what these index dimensions add to the address of the weight.

    >>> line = Signature.of("2*y+u-1, u -> y  sum: u", [(4,), (3,)], sizes={"y": 2})
    >>> (rows,) = components(line, operand=0, weight=1)
    >>> list(zip(rows.source.numbers.tolist(), rows.target.numbers.tolist(), rows.address.tolist()))
    [(0, 0, 1), (1, 0, 2), (1, 1, 0), (2, 1, 1), (3, 1, 2)]
    """

    source: Side
    target: Side
    address: Integers


def components(signature: Signature, operand: int, weight: int | None = None) -> list[Component]:
    """The components of an operand and the result, that share no index dimension."""
    line = signature.notation
    if len(line.results) != 1:
        raise WeftError(f"a linear map has one result; {len(line.results)} in {line}")
    _check_linear(signature, operand)
    sizes = dict(signature.sizes)
    source = _with_windows(line.operands[operand], sizes)
    target = line.results[0]
    steps, first = _addresses(signature, weight)
    shapes = signature.operand_shapes[operand], signature.result_shapes[0]
    found = list[Component]()
    for names in _connected([row.dims for row in (*source, *target)], sizes):
        sides = [_chosen(rows, names) for rows in (source, target)]
        found.append(_component(names, sizes, steps, sides, shapes))
    fixed = [[dim for dim, row in enumerate(rows) if not row.terms] for rows in (source, target)]
    start = _component([], sizes, steps, [_at(source, fixed[0]), _at(target, fixed[1])], shapes)
    if first or any(fixed):
        found.append(Component(start.source, start.target, start.address + first))
    return found


def _check_linear(signature: Signature, operand: int) -> None:
    """Refuse lines whose result is not a sum over the operand."""
    line = signature.notation
    for name in {name for row in line.operands[operand] for name in row.dims}:
        monoid = line.reduced.get(name, "sum")
        if monoid != "sum":
            raise WeftError(f"'{name}' is reduced by {monoid}, which is not linear: {line}")
    for row in (*line.operands[operand], *line.results[0]):
        if row.source:
            raise WeftError(f"'{row}' does not say which elements it is made of: {line}")
    for row in line.results[0]:
        if row.window or row.divisor != 1:
            raise WeftError(f"'{row}' in a result stands for several elements: {line}")


def _with_windows(rows: Rows, sizes: dict[str, int]) -> Rows:
    """Each window as one more index dimension, whose size is noted."""
    made = list(rows)
    for dim, row in enumerate(rows):
        if row.window > 1:
            name = f"+:{dim}"
            sizes[name] = row.window
            made[dim] = row._replace(terms=(*row.terms, (name, 1)), window=0)
    return tuple(made)


def _addresses(signature: Signature, weight: int | None) -> tuple[dict[str, int], int]:
    """What a step of each index dimension adds to the address of the weight, and the first one."""
    steps, first = dict.fromkeys(signature.sizes, 0), 0
    if weight is None:
        return steps, first
    shape, line = signature.operand_shapes[weight], signature.notation
    for dim, row in enumerate(line.operands[weight]):
        stride = prod(shape[dim + 1 :])
        low = row.offset + sum(a * (signature.sizes[n] - 1) for n, a in row.terms if a < 0)
        high = row.offset + sum(a * (signature.sizes[n] - 1) for n, a in row.terms if a > 0)
        if row.window or row.divisor != 1 or low < 0 or high >= shape[dim]:
            raise WeftError(f"'{row}' is no single element of a weight of {shape[dim]}: {line}")
        first += stride * row.offset
        for name, a in row.terms:
            steps[name] += stride * a
    return steps, first


def _connected(groups: Iterable[Sequence[str]], names: Iterable[str]) -> Iterator[list[str]]:
    """Names that stand in one group with each other, or with others that do."""
    parts = {name: [name] for name in names}
    for group in groups:
        for name in group[1:]:
            one, other = parts[group[0]], parts[name]
            if one is not other:
                one += other
                parts.update(dict.fromkeys(other, one))
    seen = set[int]()
    for part in parts.values():
        if id(part) not in seen:
            seen.add(id(part))
            yield part


def _chosen(rows: Rows, names: Sequence[str]) -> list[tuple[int, Row]]:
    return [(dim, row) for dim, row in enumerate(rows) if row.terms and row.dims[0] in names]


def _at(rows: Rows, dims: Iterable[int]) -> list[tuple[int, Row]]:
    return [(dim, rows[dim]) for dim in dims]


def _component(
    names: Sequence[str],
    sizes: Mapping[str, int],
    steps: Mapping[str, int],
    sides: Sequence[Sequence[tuple[int, Row]]],
    shapes: Sequence[Point],
) -> Component:
    """All points of the index dimensions at which both tensors have an element."""
    box = [sizes[name] for name in names]
    points = prod(box)
    index = dict(zip(names, np.indices(box, dtype=np.int64).reshape(len(names), points)))
    valid, found = np.ones(points, bool), list[list[Integers]]()
    for rows, shape in zip(sides, shapes):
        found.append([])
        for dim, row in rows:
            at = sum((a * index[name] for name, a in row.terms), np.full(points, row.offset))
            if row.divisor != 1:
                valid &= at % row.divisor == 0
                at //= row.divisor
            valid &= (at >= 0) & (at < shape[dim])
            found[-1].append(at)
    address = sum((steps.get(n, 0) * index[n] for n in names), np.zeros(points, np.int64))
    source, target = (
        Side(
            tuple(dim for dim, _ in rows),
            tuple(shape[dim] for dim, _ in rows),
            tuple(at[valid] for at in each),
        )
        for rows, shape, each in zip(sides, shapes, found)
    )
    return Component(source, target, address[valid])

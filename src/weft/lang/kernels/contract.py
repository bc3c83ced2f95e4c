"""The kernel of products that are summed: any operators whose lines name plain dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from weft.lang.block import Block
from weft.lang.notation import Notation
from weft.lang.signature import Signature
from weft.values import Point

Names = tuple[str, ...]


def contract(block: Block, *operands: Any) -> Any:
    """The sum of products over what the result does not name, and what is added once."""
    xp, recipe = block.xp, _recipe(block)
    arrays = [
        operands[n] if recipe.plain[n] else _plain(xp, operands[n], recipe.names[n])
        for n in recipe.factors
    ]
    x = arrays[0]
    for step, y in zip(recipe.steps, arrays[1:]):
        x = step.run(xp, x, y)
    x = recipe.finish(xp, x)
    for n in recipe.added:
        x = x + spread(xp, operands[n], recipe.names[n], recipe.result)
    return x


def sum_of_products(block: Block, *operands: Any) -> Any:
    """The same of a line that may sum over what one factor alone has, or keep single dimensions.

    What one factor alone has is summed before anything is multiplied.
    """
    xp, (lost, whole) = block.xp, _without_lone(block)
    arrays = [xp.sum(x, axis=axes, dtype=x.dtype) if axes else x for x, axes in zip(operands, lost)]
    return xp.reshape(contract(whole, *arrays), block.results[0].shape)


@lru_cache(maxsize=4096)
def _without_lone(block: Block) -> tuple[list[Point], Block]:
    """For each factor the axes that it alone has and nobody keeps; the block without them."""
    line = block.signature.notation
    named = [[str(row.plain) for row in rows] for rows in line.operands]
    result = [row for row in line.results[0] if row.plain]
    kept, lost, rows, shapes = {str(row.plain) for row in result}, list[Point](), [], []
    for n, (names, box) in enumerate(zip(named, block.operands)):
        others = kept.union(*(each for m, each in enumerate(named) if m != n))
        lost.append(tuple(axis for axis, name in enumerate(names) if name not in others))
        stays = [axis for axis in range(len(names)) if axis not in lost[n]]
        rows.append([line.operands[n][axis] for axis in stays])
        shapes.append([box.shape[axis] for axis in stays])
    left = {name for each in rows for row in each for name in row.dims}
    reduced = {name: monoid for name, monoid in line.reduced.items() if name in left}
    inner = Signature(Notation(rows, [result], reduced), shapes)
    return lost, Block(block.xp, inner, {}, inner.space)


class _Step(NamedTuple):
    """One product of two arrays as a product of matrices; what is None is not needed."""

    left: tuple[Point | None, Point | None]
    right: tuple[Point | None, Point | None]
    made: Point | None

    def run(self, xp: Any, x: Any, y: Any) -> Any:
        made = xp.matmul(_matrix(xp, x, *self.left), _matrix(xp, y, *self.right))
        return made if self.made is None else xp.reshape(made, self.made)


def _matrix(xp: Any, x: Any, order: Point | None, shape: Point | None) -> Any:
    x = x if order is None else xp.permute_dims(x, order)
    return x if shape is None else xp.reshape(x, shape)


class _Recipe(NamedTuple):
    names: tuple[Names, ...]
    plain: tuple[bool, ...]
    """Whether each operand has an axis for each of its names, as it is."""
    factors: tuple[int, ...]
    added: tuple[int, ...]
    steps: tuple[_Step, ...]
    summed: Point
    order: Point | None
    result: Names

    def finish(self, xp: Any, x: Any) -> Any:
        if self.summed:
            x = xp.sum(x, axis=self.summed, dtype=x.dtype)
        return x if self.order is None else xp.permute_dims(x, self.order)


@lru_cache(maxsize=4096)
def _recipe(block: Block) -> _Recipe:
    line = block.signature.notation
    names = tuple(tuple(row.plain or "" for row in rows) for rows in line.operands)
    (result,) = (tuple(row.plain or "" for row in rows) for rows in line.results)
    factors = tuple(n for n in range(len(names)) if n not in line.once)
    sizes = {name: len(block.span(name)) for name in block.signature.sizes}
    have = _once_each(names[factors[0]])
    steps = []
    for place, number in enumerate(factors[1:], 2):
        later = {name for n in factors[place:] for name in names[n]} | set(result)
        step, have = _pair(have, _once_each(names[number]), later, sizes)
        steps.append(step)
    summed = tuple(n for n, name in enumerate(have) if name not in result)
    kept = [name for name in have if name in result]
    order = _unless_in_order(tuple(kept.index(name) for name in result))
    plain = tuple(len(set(each)) == len(each) and "" not in each for each in names)
    added = tuple(sorted(line.once))
    return _Recipe(names, plain, factors, added, tuple(steps), summed, order, result)


def _unless_in_order(order: Point) -> Point | None:
    return None if order == tuple(range(len(order))) else order


def _once_each(names: Names) -> Names:
    """The names that are left of an operand: each once, none for single elements."""
    return tuple(name for name in dict.fromkeys(names) if name)


def _pair(left: Names, right: Names, later: set[str], sizes: dict[str, int]) -> tuple[_Step, Names]:
    """The product of two arrays, summed over what nobody needs later."""
    both = [name for name in left if name in right]
    batch = [name for name in both if name in later]
    inner = [name for name in both if name not in later]
    rows = [name for name in left if name not in both]
    columns = [name for name in right if name not in both]

    def sides(groups: Sequence[list[str]], names: Names) -> tuple[Point | None, Point | None]:
        order = tuple(names.index(name) for group in groups for name in group)
        groups = groups if batch else groups[1:]
        alone = all(len(group) == 1 for group in groups)
        shape = tuple(prod(sizes[name] for name in group) for group in groups)
        return _unless_in_order(order), None if alone else shape

    made = (*batch, *rows, *columns)
    single = len(batch) < 2 and len(rows) == len(columns) == 1
    step = _Step(
        sides((batch, rows, inner), left),
        sides((batch, inner, columns), right),
        None if single else tuple(sizes[name] for name in made),
    )
    return step, made


def _permuted(xp: Any, x: Any, order: Point) -> Any:
    return x if order == tuple(range(len(order))) else xp.permute_dims(x, order)


def _plain(xp: Any, x: Any, names: Names) -> Any:
    """An array with one axis for each name: single elements go, a repeated name is a diagonal."""
    if "" in names:
        x = x[tuple(slice(None) if name else 0 for name in names)]
        names = tuple(name for name in names if name)
    for name in [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        while names.count(name) > 1:
            x, names = _diagonal(xp, x, names, name)
    return x


def _diagonal(xp: Any, x: Any, names: Names, name: str) -> tuple[Any, Names]:
    first = names.index(name)
    second = names.index(name, first + 1)
    rest = [axis for axis in range(len(names)) if axis not in (first, second)]
    x = xp.linalg.diagonal(xp.permute_dims(x, (*rest, first, second)))
    back = list(range(len(rest)))
    back.insert(first, len(rest))
    return xp.permute_dims(x, tuple(back)), names[:second] + names[second + 1 :]


def spread(xp: Any, x: Any, names: Names, result: Names) -> Any:
    """An array with the axes of the result, of size 1 where it has none."""
    x = _plain(xp, x, names)
    have = _once_each(names)
    x = _permuted(xp, x, tuple(have.index(name) for name in result if name in have))
    sizes = iter(x.shape)
    return xp.reshape(x, tuple(next(sizes) if name in have else 1 for name in result))

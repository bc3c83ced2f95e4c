"""Matrix products of all kinds: sums of products over plain index dimensions.

matmul    m k, k n -> m n        sum: k
linear    m k, k n, + n -> m n   sum: k
einsum    any line of plain dimensions
prod_of   m k, k n -> m n k      the products before they are summed
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from weft.errors import WeftError
from weft.lang.dtype import like_all, together
from weft.lang.kernel import Attributes, Block
from weft.lang.notation import Notation, Row, aligned, plain
from weft.lang.operator import Keeps, define
from weft.lang.signature import Signature
from weft.values import Point

Names = tuple[str, ...]

LARGEST_PRODUCT = 1 << 30
"""The most bytes of unsummed products on a cell."""


def sign_matmul(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign a product of matrices, vectors, or batches of matrices that are broadcast.

    >>> print(sign_matmul([(2, 8, 16), (16, 4)], {}).notation)
    b0 m k, k n -> b0 m n  sum: k
    """
    if len(shapes) != 2 or not all(shapes):
        raise WeftError(f"matmul takes two arrays of rank 1 or more, got {list(map(list, shapes))}")
    (one, two), batch = aligned("b", [shape[:-2] for shape in shapes])
    left = plain("m", "k")[-len(shapes[0]) :]
    right = plain("k", "n")[: len(shapes[1])]
    ends = [row for row in (*left, *right) if row.plain != "k"]
    line = Notation([[*one, *left], [*two, *right]], [[*batch, *ends]], {"k": "sum"})
    return Signature(line, shapes)


def sign_linear(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign a matrix for the last dimension, and a bias that is added once.

    >>> print(sign_linear([(2, 8, 16), (16, 4), (4,)], {}).notation)
    b0 m k, k n, + n -> b0 m n  sum: k
    """
    names = [*(f"b{n}" for n in range(len(shapes[0]) - 2)), "m"][-len(shapes[0]) + 1 :]
    kept = plain(*names) if len(shapes[0]) > 1 else ()
    k, n = plain("k", "n")
    operands = [[*kept, k], [k, n], [n]][: len(shapes)]
    return Signature(
        Notation(operands, [[*kept, n]], {"k": "sum"}, once=[2][: len(shapes) - 2]), shapes
    )


def _named(rank: int, free: str, named: Sequence[tuple[str, Sequence[int]]]) -> list[str]:
    """Return the names of an operand's dimensions: those that are paired, and the others."""
    names = [""] * rank
    for letter, dims in named:
        for number, dim in enumerate(dims):
            if not 0 <= dim < rank:
                raise WeftError(f"there is no dimension {dim} among {rank}")
            names[dim] = f"{letter}{number}"
    rest = (f"{free}{number}" for number in range(rank))
    return [name or next(rest) for name in names]


def sign_dot_general(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign a product with batched, free and contracted dimensions.

    >>> dims = dict(lhs_contracting_dimensions=(1,), rhs_contracting_dimensions=(0,))
    >>> print(sign_dot_general([(8, 16), (16, 4)], dims).notation)
    m0 k0, k0 n0 -> m0 n0  sum: k0
    """
    sides = []
    for side, free, shape in zip(("lhs", "rhs"), "mn", shapes):
        batched = attributes.get(f"{side}_batching_dimensions", ())
        contracted = attributes.get(f"{side}_contracting_dimensions", ())
        sides.append(_named(len(shape), free, [("b", batched), ("k", contracted)]))
    left, right = sides
    batch = sorted((n for n in left if n[0] == "b"), key=lambda n: int(n[1:]))
    result = [*batch, *(n for n in left if n[0] == "m"), *(n for n in right if n[0] == "n")]
    rows = [[Row(((name, 1),)) for name in names] for names in (left, right, result)]
    reduced = {name: "sum" for name in left if name[0] == "k"}
    return Signature(Notation(rows[:2], rows[2:], reduced), shapes)


def sign_dot(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign a product of matrices and vectors.

    >>> print(sign_dot([(8, 16), (16,)], {}).notation)
    m0 k0, k0 -> m0  sum: k0
    """
    contracting = {
        "lhs_contracting_dimensions": (len(shapes[0]) - 1,),
        "rhs_contracting_dimensions": (0,),
    }
    return sign_dot_general(shapes, contracting)


def sign_einsum(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign a line of plain index dimensions, or an equation of single letters.

    >>> print(sign_einsum([(8, 16), (16, 4)], {"equation": "ij,jk->ik"}).notation)
    i j, j k -> i k  sum: j
    """
    text = attributes["equation"]
    if "->" not in text:
        raise WeftError(f"the equation {text!r} has no '->'", hint="name the result: ij,jk->ik")
    if " " not in text.strip():
        text = ", ".join(map(" ".join, text.replace("->", ",->").split(",")))
        text = text.replace(", - >", " ->")
    line = Notation.parse(_with_sum(text))
    for rows in (*line.operands, *line.results):
        for row in rows:
            if row.plain is None or row.whole:
                raise WeftError(f"equation {text!r} has '{row}', which is not a plain dimension")
    if any(len({*rows}) < len(rows) for rows in line.results):
        raise WeftError(f"equation {text!r} has a name twice in its result")
    return Signature(line, shapes)


def _with_sum(text: str) -> str:
    """Return the line with every dimension that no result names summed."""
    left, _, right = text.partition("->")
    names = [name for tensor in left.split(",") for name in tensor.split()]
    summed = [name for name in dict.fromkeys(names) if name not in right.split()]
    return f"{text}  sum: {' '.join(summed)}" if summed and ":" not in text else text


def sign_prod_of(shapes: Sequence[Point], attributes: Attributes) -> Signature:
    """Sign the products of a matrix product, with the summed dimension last.

    >>> print(sign_prod_of([(8, 16), (16, 4)], {}).notation)
    m k, k n -> m n k
    """
    line = sign_matmul(shapes, attributes).notation
    return Signature(Notation(line.operands, [(*line.results[0], *plain("k"))]), shapes)


def contract(block: Block, *operands: Any) -> Any:
    """Sum the products over the dimensions that the result lacks; add bias operands once."""
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
    """Contract a line that may sum over dimensions of one factor, or keep single dimensions.

    Dimensions of one factor are summed before anything is multiplied.
    """
    xp, (lost, whole) = block.xp, _without_lone(block)
    arrays = [xp.sum(x, axis=axes, dtype=x.dtype) if axes else x for x, axes in zip(operands, lost)]
    return xp.reshape(contract(whole, *arrays), block.results[0].shape)


@lru_cache(maxsize=4096)
def _without_lone(block: Block) -> tuple[list[Point], Block]:
    """Return the axes that only one factor has and the result lacks, and the block without them."""
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


class _Product(NamedTuple):
    """One product of two arrays as a product of matrices; None: no transpose, no reshape."""

    left: tuple[Point | None, Point | None]
    right: tuple[Point | None, Point | None]
    shape: Point | None

    def run(self, xp: Any, x: Any, y: Any) -> Any:
        product = xp.matmul(_matrix(xp, x, *self.left), _matrix(xp, y, *self.right))
        return product if self.shape is None else xp.reshape(product, self.shape)


def _matrix(xp: Any, x: Any, order: Point | None, shape: Point | None) -> Any:
    x = x if order is None else xp.permute_dims(x, order)
    return x if shape is None else xp.reshape(x, shape)


class _Contraction(NamedTuple):
    """The steps of a contraction, derived once for a block."""

    names: tuple[Names, ...]
    plain: tuple[bool, ...]
    """Whether each operand has one axis for each of its names."""
    factors: tuple[int, ...]
    added: tuple[int, ...]
    steps: tuple[_Product, ...]
    summed: Point
    order: Point | None
    result: Names

    def finish(self, xp: Any, x: Any) -> Any:
        if self.summed:
            x = xp.sum(x, axis=self.summed, dtype=x.dtype)
        return x if self.order is None else xp.permute_dims(x, self.order)


@lru_cache(maxsize=4096)
def _recipe(block: Block) -> _Contraction:
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
    return _Contraction(names, plain, factors, added, tuple(steps), summed, order, result)


def _unless_in_order(order: Point) -> Point | None:
    return None if order == tuple(range(len(order))) else order


def _once_each(names: Names) -> Names:
    """Return the names of an operand, each once, without those of single elements."""
    return tuple(name for name in dict.fromkeys(names) if name)


def _pair(
    left: Names, right: Names, later: set[str], sizes: dict[str, int]
) -> tuple[_Product, Names]:
    """Return the product of two arrays, summed over the names that no later step needs."""
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

    names = (*batch, *rows, *columns)
    single = len(batch) < 2 and len(rows) == len(columns) == 1
    step = _Product(
        sides((batch, rows, inner), left),
        sides((batch, inner, columns), right),
        None if single else tuple(sizes[name] for name in names),
    )
    return step, names


def _plain(xp: Any, x: Any, names: Names) -> Any:
    """Return an array with one axis for each name: a repeated name is a diagonal."""
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
    """Return an array with the axes of the result, of size 1 where it has none."""
    x = _plain(xp, x, names)
    have = _once_each(names)
    order = tuple(have.index(name) for name in result if name in have)
    x = _matrix(xp, x, _unless_in_order(order), None)
    sizes = iter(x.shape)
    return xp.reshape(x, tuple(next(sizes) if name in have else 1 for name in result))


def prod_of(block: Block, x: Any, y: Any) -> Any:
    """Compute every product of a matrix product, none of them summed."""
    size = block.results[0].size * getattr(x.dtype, "itemsize", 1)  # not in the standard
    if size > LARGEST_PRODUCT:
        raise too_many_products("prod_of", size)
    line = block.signature.notation
    names = [tuple(row.plain or "" for row in rows) for rows in (*line.operands, *line.results)]
    one, two = (spread(block.xp, a, n, names[2]) for a, n in zip((x, y), names))
    return one * two


def too_many_products(name: str, size: int) -> WeftError:
    """Return the error for unsummed products that would take too much memory."""
    return WeftError(
        f"{name} would hold {size} B of products on a cell; at most {LARGEST_PRODUCT} B fit",
        hint="plan it, and let nothing but reductions use it, without a sharding; or use matmul",
    )


def with_bias(count: int) -> Keeps:
    """Return the operands that may be partial sums: either factor, and the bias with it."""
    bias = tuple(range(2, count))
    return {"sum": [(0, *bias), (1, *bias)]}


def multiplied(dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
    """Return the dtype of a sum of products: `dtype`, or that of its factors."""
    return [attributes["dtype"]] if attributes.get("dtype") else like_all(dtypes, attributes)


_PRODUCT = {"sum": [(0,), (1,)]}
_DIMENSIONS = """
    lhs_batching_dimensions rhs_batching_dimensions lhs_contracting_dimensions
    rhs_contracting_dimensions
"""
_EACH = {"sum": [(0,), (1,), (2,), (3,)]}
for _name, _sign, _keeps, _flops, _attributes, _workspace in (
    ("matmul", sign_matmul, _PRODUCT, 2, "", 0.0),
    ("linear", sign_linear, with_bias, 2, "", 1.0),
    ("dot_general", sign_dot_general, _PRODUCT, 2, _DIMENSIONS, 1.0),
    ("dot", sign_dot, _PRODUCT, 2, "", 1.0),
    ("einsum", sign_einsum, _EACH, lambda line, _: len(line.notation.operands), "equation", 1.0),
):
    define(
        _name,
        _sign,
        contract,
        keeps=_keeps,
        flops=_flops,
        dtypes=multiplied,
        conversion=together,
        accumulates="numpy",
        attributes=_attributes,
        workspace=_workspace,
    )
define(
    "prod_of",
    sign_prod_of,
    prod_of,
    keeps=_PRODUCT,
    dtypes=like_all,
    conversion=together,
)

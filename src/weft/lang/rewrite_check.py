"""Check a rewrite before it is used: both sides are computed for random arrays of random sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from random import Random
from typing import Any

from weft.errors import WeftError
from weft.extra import needed
from weft.lang.graph import Graph
from weft.lang.kernel import Block
from weft.lang.rewrite import Rewrite

TRIALS = 16
"""How many random shapes and dtypes are tried."""

SIZES = (1, 2, 3, 4, 5, 6, 7, 9)
"""The sizes of dimensions: small and odd ones, where blocks are uneven."""

MOST_ELEMENTS = 1 << 16
"""The most elements of an array that is computed in its own size."""

TOLERANCES = {"float16": 2e-2, "bfloat16": 5e-2, "float32": 1e-4, "complex64": 1e-4}
"""The relative error that another order of operations may make; 1e-9 for wider dtypes."""


def check_rewrite(rewrite: Rewrite, part: Graph, root: str) -> None:
    """Raise an error unless a rewrite of a part of a graph computes the same values.

    The part is tried in its own sizes, if they are small, and in random ones; in its own dtypes
    and in others that it takes. A rewrite that nothing could be computed for is refused, too.

    >>> from weft import ops, trace
    >>> graph = trace(lambda x: ops.relu(x), (4, 8))
    >>> twice = Rewrite("relu twice", ("relu", "x"), lambda v, _: ops.relu(ops.relu(v["x"])))
    >>> check_rewrite(twice, graph, "relu")
    >>> wrong = Rewrite("relu as exp", ("relu", "x"), lambda v, _: ops.exp(v["x"]))
    >>> check_rewrite(wrong, graph, "relu")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    weft.errors.WeftError: relu as exp changes relu: expected ... at [0, 0], got ...
    hint: for x: float32[4, 8]
    """
    compared = 0
    rng = Random(0)
    for small in _variations(part, rng):
        if not any(match.root == root for match in rewrite.matches(small)):
            continue
        inputs = _inputs(small, rng)
        try:
            wanted = _compute(small, inputs)[root]
        except (WeftError, TypeError, ValueError, IndexError, ZeroDivisionError):
            continue  # it does not take these shapes and dtypes
        given = ", ".join(map(str, small.inputs))
        try:
            found = _compute(rewrite.apply(small, root), inputs)[root]
        except Exception as error:
            raise WeftError(f"{rewrite.name} fails: {error}", hint=f"for {given}") from error
        _compare(rewrite.name, root, wanted, found, f"for {given}")
        compared += 1
    if not compared:
        raise WeftError(
            f"{rewrite.name} could not be checked for {', '.join(map(str, part.inputs))}",
            hint="operators of a rewrite need kernels, and arrays that are not too large",
        )


def _variations(part: Graph, rng: Random) -> Iterator[Graph]:
    """Yield the part itself if it is small, and with other sizes and dtypes."""
    if all(_elements(value.shape) <= MOST_ELEMENTS for value in part.values.values()):
        yield part
    sizes = sorted({size for value in part.inputs for size in value.shape})
    dtypes = sorted({value.dtype for value in part.inputs})
    for number in range(TRIALS):
        size_of = {size: rng.choice(SIZES) for size in sizes}
        dtype_of = dict(zip(dtypes, dtypes))
        if number % 2:
            other = rng.choice(["float64", "float32", "int32", "int64"])
            dtype_of |= {dtype: other for dtype in dtypes if dtype != "bool"}
        inputs = [
            value._replace(
                shape=tuple(size_of[n] for n in value.shape), dtype=dtype_of[value.dtype]
            )
            for value in part.inputs
        ]
        try:
            yield Graph(inputs, part.applications, part.outputs, operators=part.operators)
        except WeftError:  # attributes determine sizes
            continue


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _inputs(graph: Graph, rng: Random) -> dict[str, Any]:
    numpy = needed("numpy", "run")
    random = numpy.random.default_rng(rng.randrange(1 << 30))
    arrays = {}
    for value in graph.inputs:
        kind = numpy.dtype(value.dtype).kind if value.dtype != "bfloat16" else "f"
        numbers = random.integers(-3, 4, value.shape)
        if kind in "fc":
            numbers = random.standard_normal(value.shape)
        arrays[value.name] = (abs(numbers) if kind == "u" else numbers).astype(value.dtype)
    return arrays


def _compute(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return all values of a graph, each computed in one piece."""
    xp = import_module("array_api_compat.numpy")
    values = dict(inputs)
    for application, signature in zip(graph.applications, graph.signatures):
        kernel = graph.operators.find(application.operator).kernel
        if kernel is None:
            raise WeftError(f"{application.operator} has no kernel")
        block = Block(xp, signature, application.attributes, signature.space)
        operands = [
            values[name][box.slices((0,) * len(box.start))]
            for name, box in zip(application.operands, block.operands)
        ]
        results = kernel(block, *operands)
        many = results if isinstance(results, tuple | list) else (results,)
        values |= dict(zip(application.results, many))
    return values


def _compare(name: str, root: str, wanted: Any, found: Any, hint: str) -> None:
    numpy = needed("numpy", "run")
    wanted, found = numpy.asarray(wanted), numpy.asarray(found)
    if (wanted.shape, wanted.dtype) != (found.shape, found.dtype):
        made, expected = (f"{a.dtype}{list(a.shape)}" for a in (found, wanted))
        raise WeftError(f"{name} computes {made} for {root}, expected {expected}", hint=hint)
    if wanted.dtype.kind in "fc":
        tolerance = TOLERANCES.get(str(wanted.dtype), 1e-9)
        scale = numpy.max(numpy.abs(wanted), initial=1.0, where=numpy.isfinite(wanted))
        same = numpy.isclose(found, wanted, tolerance, tolerance * scale, equal_nan=True)
    else:
        same = found == wanted
    if not numpy.all(same):
        at = tuple(int(n) for n in numpy.argwhere(~numpy.atleast_1d(same))[0])
        one, two = (numpy.atleast_1d(a)[at] for a in (wanted, found))
        raise WeftError(
            f"{name} changes {root}: expected {one:.6g} at {list(at)}, got {two:.6g}", hint=hint
        )

"""Rewrites: a pattern of applications, and a replacement that computes the same values.

A pattern is a tree: an operator's name and its operands, each a variable that matches any value, or
a tree again. A replacement is a function of the values that the variables match, written with
`weft.ops`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from weft.errors import WeftError
from weft.lang import ops
from weft.lang.arithmetic import apply, apply_all
from weft.lang.dtype import accumulator, sum_dtype
from weft.lang.graph import Application, Graph
from weft.lang.kernel import Attributes
from weft.lang.operator import OPERATORS
from weft.lang.size import recording
from weft.lang.staged import staged_forms, typed, wide
from weft.lang.trace import Symbol, Tracer
from weft.space import BlockGrid

Pattern: TypeAlias = str | tuple[Any, ...]
"""A variable, or an operator's name with patterns for its operands."""


class Match(NamedTuple):
    """A match of a pattern: the value of its root, and the values of its variables."""

    root: str
    values: Mapping[str, str]
    applications: tuple[Application, ...]
    """The matched applications, the root first."""

    def attributes(self, operator: str) -> Attributes:
        """Return the attributes of the first application of an operator in the match."""
        return next(a.attributes for a in self.applications if a.operator == operator)


Replacement: TypeAlias = Callable[[Mapping[str, Symbol], Match], Symbol]
Condition: TypeAlias = Callable[[Graph, Match], bool]


def always(graph: Graph, match: Match) -> bool:
    """Return True: the condition of rewrites that always apply."""
    return True


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A pattern, its replacement, and the condition under which it applies.

    >>> from weft import ops, trace
    >>> apart = Rewrite(
    ...     "linear as matmul and add",
    ...     ("linear", "x", "w", "b"),
    ...     lambda v, _: v["x"] @ v["w"] + v["b"],
    ... )
    >>> graph = trace(lambda x, w, b: ops.linear(x, w, b), (8, 16), (16, 4), (4,))
    >>> print(apart.apply(graph, "linear"))
    x: float32[8, 16]
    w: float32[16, 4]
    b: float32[4]
    matmul: float32[8, 4] = matmul(x, w)
    linear: float32[8, 4] = add(matmul, b)
    return linear
    """

    name: str
    pattern: Pattern
    replacement: Replacement
    condition: Condition = always
    makes_blocks: bool = False
    """Whether it makes blocks of the same operator: a search does not cut blocks into blocks."""

    def matches(self, graph: Graph) -> Iterator[Match]:
        """Yield the matches that it may be applied to."""
        makers = {name: a for a in graph.applications for name in a.results}
        for application in graph.applications:
            match = _find(self.pattern, application.results[0], makers)
            if match is not None and _is_apart(graph, match) and self.condition(graph, match):
                yield match

    def apply(self, graph: Graph, root: str) -> Graph:
        """Return the graph in which the replacement computes `root`, under its old name."""
        conditions = dict.fromkeys(graph.conditions)
        with recording(conditions):
            match = next((each for each in self.matches(graph) if each.root == root), None)
            if match is None:
                raise WeftError(f"{self.name} cannot be applied to {root}")
            return _Rewriter(graph, self, match, conditions).graph()


def _find(pattern: Pattern, value: str, makers: Mapping[str, Application]) -> Match | None:
    values: dict[str, str] = {}
    applications: list[Application] = []

    def fits(part: Pattern, name: str) -> bool:
        if isinstance(part, str):
            return values.setdefault(part, name) == name
        maker = makers.get(name)
        if maker is None or maker.operator != part[0] or len(maker.operands) != len(part) - 1:
            return False
        applications.append(maker)
        return all(map(fits, part[1:], maker.operands))

    matches = not isinstance(pattern, str) and fits(pattern, value)
    return Match(value, values, tuple(applications)) if matches else None


def _is_apart(graph: Graph, match: Match) -> bool:
    """Return whether the inner values of a match are used only inside it."""
    uses = Counter(name for a in graph.applications for name in a.operands)
    uses.update(graph.outputs)
    uses.update(list(graph.shardings))
    own = Counter(name for a in match.applications for name in a.operands)
    inner = [name for a in match.applications[1:] for name in a.results]
    return len(match.applications[0].results) == 1 and all(uses[n] == own[n] for n in inner)


class _Rewriter:
    """Records a graph again, with one match replaced."""

    def __init__(
        self, graph: Graph, rewrite: Rewrite, match: Match, conditions: dict[str, None]
    ) -> None:
        self.old, self.rewrite, self.match = graph, rewrite, match
        self.tracer = Tracer(graph.operators)
        self.tracer.conditions = conditions
        self.tracer.used_names = dict.fromkeys(graph.values, 1)
        self.known = {value.name: Symbol(self.tracer, value) for value in graph.inputs}
        self.tracer.inputs = list(graph.inputs)

    def graph(self) -> Graph:
        inner = {id(application) for application in self.match.applications}
        root = id(self.match.applications[0])
        for application in self.old.applications:
            if id(application) == root:
                self._replace()
            elif id(application) not in inner:
                self._keep(application)
        old, tracer = self.old, self.tracer
        return Graph(
            old.inputs,
            tracer.applications,
            old.outputs,
            old.meshes,
            old.shardings,
            old.output_shardings,
            old.operators,
            tracer.dtypes,
            old.parameters,
            old.is_region,
            tracer.conditions,
        )

    def _keep(self, application: Application) -> None:
        self.tracer.applications.append(application)
        for name in application.results:
            value = self.old.values[name]
            self.known[name] = Symbol(self.tracer, value)
            self.tracer.dtypes[name] = value.dtype

    def _replace(self) -> None:
        values = {part: self.known[name] for part, name in self.match.values.items()}
        before = len(self.tracer.applications)
        result = self.rewrite.replacement(values, self.match)
        wanted = self.old.values[self.match.root]
        if (result.shape, result.dtype) != (wanted.shape, wanted.dtype):
            raise WeftError(
                f"{self.rewrite.name} replaces {wanted} by {result.dtype}{list(result.shape)}"
            )
        new = self.tracer.applications[before:]
        if not new or result.name not in new[-1].results:
            raise WeftError(f"{self.rewrite.name} must compute its value last")
        last = new[-1]
        renamed = tuple(wanted.name if n == result.name else n for n in last.results)
        self.tracer.applications[-1] = last._replace(results=renamed)
        self.tracer.dtypes[wanted.name] = wanted.dtype
        self.known[wanted.name] = Symbol(self.tracer, wanted)


# The rewrites that Weft ships: an operator as a composition of others, or the reverse. A plan uses
# the whole operator where its index dimensions are not cut, and the parts where they are.

Values = Mapping[str, Symbol]

BLOCKS = 4
"""The number of blocks that a reduction is split into, if its size allows."""


def _one_dim(operator: str, count: int) -> Rewrite:
    """Return the rewrite of a reduction along one dimension as a reduction of blocks."""

    def condition(graph: Graph, match: Match) -> bool:
        attributes = match.attributes(operator)
        shape = graph.values[match.values["x"]].shape
        return len(attributes["dimensions"]) == 1 and shape[attributes["dimensions"][0]] > count

    def replacement(v: Values, match: Match) -> Symbol:
        attributes = match.attributes(operator)
        x, (dim,) = v["x"], attributes["dimensions"]
        dim %= len(x.shape)
        monoid = "sum" if operator == "mean_dim" else operator.removesuffix("_dim")
        (result,) = OPERATORS[operator].dtypes([x.dtype], attributes)
        adds = monoid in ("sum", "prod")
        within = accumulator(result) if adds else result
        first, second = (_unless(sum_dtype(d) if adds else d, within) for d in (x.dtype, within))
        parts = apply("reduce_blocks", x, dimension=dim, blocks=count, monoid=monoid, dtype=first)
        keep = attributes.get("keepdims", False)
        total: Symbol = apply(
            f"{monoid}_dim", parts, dimensions=(dim,), keepdims=keep, dtype=second
        )
        total = total / x.shape[dim] if operator == "mean_dim" else total
        return total if total.dtype == result else total.astype(result)

    return Rewrite(f"{operator} in blocks", (operator, "x"), replacement, condition)


def _unless(own: str, wanted: str) -> str | None:
    """Return the dtype `wanted`; None if the operator returns it by itself."""
    return None if own == wanted else wanted


def _softmax(v: Values, match: Match) -> Symbol:
    dim = match.attributes("softmax").get("dimension", -1)
    x = wide(v["x"])
    e = ops.exp(x - x.max(dim, keepdims=True))
    return typed(v["x"].dtype, e / e.sum(dim, keepdims=True))


def _logsumexp(v: Values, match: Match) -> Symbol:
    attributes = match.attributes("logsumexp_dim")
    dims, keep = attributes["dimensions"], attributes.get("keepdims", False)
    x = wide(v["x"])
    top = x.max(dims, keepdims=True)
    total = ops.exp(x - top).sum(dims, keepdims=True)
    result = typed(v["x"].dtype, ops.log(total) + top)
    return result if keep else ops.squeeze(result, dims)


def _summed_products(v: Values, match: Match) -> Symbol:
    x, w = wide(v["x"]), wide(v["w"])
    dtype = _unless(sum_dtype(x.dtype), x.dtype)
    return typed(v["x"].dtype, ops.prod_of(x, w).sum(-1, dtype=dtype))


def _attention(v: Values, match: Match, count: int) -> Symbol:
    """Combine blocks of keys by a running softmax: maximum, sum and weighted sum of each."""
    attributes = dict(match.attributes("attention"))
    blocks = min(count, v["k"].shape[-2])
    top, total, mixed = apply_all(
        "attention_blocks", v["q"], v["k"], v["v"], blocks=blocks, **attributes
    )
    highest = top.max(-1, keepdims=True)
    weight = ops.exp(top - highest)
    below = (total * weight).sum(-1)
    above = (mixed * weight.reshape(*weight.shape, 1)).sum(-2)
    some = ops.where(below > 0, below, below * 0 + 1)
    return typed(v["q"].dtype, above / some.reshape(*some.shape, 1))


def _convolution(v: Values, match: Match, blocks: int) -> Symbol:
    """Compute the first spatial dimension of the output in blocks of rows."""
    attributes, x, k = dict(match.attributes("convolution")), v["x"], v["k"]
    dim, kernel_dim = (
        attributes["input_spatial_dimensions"][0],
        attributes["kernel_spatial_dimensions"][0],
    )
    (low, high), rest = attributes["padding"][:2], attributes["padding"][2:]
    stride, step = attributes["window_strides"][0], attributes["rhs_dilation"][0]
    edges = {"edge_padding_low": low, "edge_padding_high": high, "interior_padding": 0}
    spread = {key: tuple(n * (d == dim) for d in range(x.ndim)) for key, n in edges.items()}
    padded = apply("pad", x, 0, **spread)
    extent = step * (k.shape[kernel_dim] - 1) + 1
    count = (padded.shape[dim] - extent) // stride + 1
    parts = []
    for block in BlockGrid.cut((count,), (min(blocks, count),)).boxes():
        if block.is_empty:
            continue
        (first,), (stop,) = block.start, block.stop
        rows = slice(stride * first, stride * (stop - 1) + extent)
        part = padded[(*[slice(None)] * dim, rows)]
        parts.append(apply("convolution", part, k, **{**attributes, "padding": (0, 0, *rest)}))
    joined: Symbol = ops.concatenate(parts, attributes["output_spatial_dimensions"][0])
    return joined


def _has_rows(graph: Graph, match: Match) -> bool:
    attributes = match.attributes("convolution")
    shape, spatial = graph.values[match.root].shape, attributes["output_spatial_dimensions"]
    plain = bool(spatial) and attributes["lhs_dilation"][0] == 1
    return plain and shape[spatial[0]] >= 2 and not any(attributes.get("window_reversal", ()))


def _has_keys(graph: Graph, match: Match) -> bool:
    queries, keys = (graph.values[match.values[name]].shape for name in "qk")
    return keys[-2] >= 2 and queries[:-2] == keys[:-2]


@lru_cache(maxsize=64)
def rewrites_in(blocks: int) -> tuple[Rewrite, ...]:
    """Return all rewrites, with that number of blocks.

    >>> len(rewrites_in(8)) == len(REWRITES)
    True
    """
    return (
        Rewrite(
            "linear as matmul and add",
            ("linear", "x", "w", "b"),
            lambda v, _: v["x"] @ v["w"] + v["b"],
        ),
        Rewrite(
            "matmul and add as linear",
            ("add", ("matmul", "x", "w"), "b"),
            lambda v, _: ops.linear(v["x"], v["w"], v["b"]),
            lambda graph, m: (
                len(graph.values[m.values["b"]].shape) == 1
                and len(graph.values[m.values["w"]].shape) == 2
                and graph.values[m.values["b"]].shape[0] == graph.values[m.values["w"]].shape[1]
            ),
        ),
        Rewrite(
            "matmul as prod and sum_dim",
            ("matmul", "x", "w"),
            _summed_products,
            lambda graph, m: not m.attributes("matmul").get("dtype"),
        ),
        Rewrite(
            "prod and sum_dim as matmul",
            ("sum_dim", ("prod_of", "x", "w")),
            lambda v, _: v["x"] @ v["w"],
            lambda graph, m: (
                not m.attributes("sum_dim").get("keepdims")
                and graph.values[m.root].dtype == graph.values[m.values["x"]].dtype
                and tuple(m.attributes("sum_dim")["dimensions"])
                == (len(graph.values[m.applications[1].results[0]].shape) - 1,)
            ),
        ),
        *(_one_dim(f"{monoid}_dim", blocks) for monoid in ("sum", "max", "min", "prod", "mean")),
        Rewrite("softmax in stages", ("softmax", "x"), _softmax),
        Rewrite("logsumexp in stages", ("logsumexp_dim", "x"), _logsumexp),
        Rewrite(
            "attention in blocks of keys",
            ("attention", "q", "k", "v"),
            lambda v, match: _attention(v, match, blocks),
            _has_keys,
        ),
        Rewrite(
            "convolution in blocks",
            ("convolution", "x", "k"),
            lambda v, match: _convolution(v, match, blocks),
            _has_rows,
            makes_blocks=True,
        ),
        *staged_forms(blocks),
    )


REWRITES = rewrites_in(BLOCKS)
"""The rewrites that Weft ships."""


def rewrites_of(operator: str) -> list[Rewrite]:
    """Return the rewrites whose pattern has an operator at its root.

    >>> [rewrite.name for rewrite in rewrites_of("linear")]
    ['linear as matmul and add']
    """
    return [rewrite for rewrite in REWRITES if rewrite.pattern[0] == operator]


NEVER_BETTER = ("matmul as prod and sum_dim",)
"""Rewrites that fusion undoes before the program runs."""


def shipped_rewrites(blocks: int) -> list[Rewrite]:
    """Return the rewrites that a search tries by itself, with that number of blocks."""
    return [rewrite for rewrite in rewrites_in(blocks) if rewrite.name not in NEVER_BETTER]

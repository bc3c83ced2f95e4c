"""Rewrites: a pattern of applications, and another that makes the same values.

A pattern is a tree: an operator's name and what it is applied to, which is a name that stands for
any value, or a tree again. A replacement is written as a function of the values that the names
stand for, in the words of `weft.ops`.
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
from weft.lang.trace import Symbol, Tracer

Pattern: TypeAlias = str | tuple[Any, ...]
"""A name for any value, or an operator's name with patterns for its operands."""


class Match(NamedTuple):
    """Where a pattern was found: the value that its root makes, and what its names stand for."""

    root: str
    values: Mapping[str, str]
    applications: tuple[Application, ...]
    """Those of the pattern, the root first."""

    def attributes(self, operator: str) -> Attributes:
        """What the first application of an operator in the pattern says."""
        return next(a.attributes for a in self.applications if a.operator == operator)


Replacement: TypeAlias = Callable[[Mapping[str, Symbol], Match], Symbol]
Condition: TypeAlias = Callable[[Graph, Match], bool]


def always(graph: Graph, match: Match) -> bool:
    """The condition of rewrites that have none."""
    return True


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One way to say the same: a pattern, what may stand in its place, and when.

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

    def matches(self, graph: Graph) -> Iterator[Match]:
        """Where it may be applied."""
        makers = {name: a for a in graph.applications for name in a.results}
        for application in graph.applications:
            found = _find(self.pattern, application.results[0], makers)
            if found is not None and _is_apart(graph, found) and self.condition(graph, found):
                yield found

    def apply(self, graph: Graph, root: str) -> Graph:
        """The graph in which the value `root` is made in the other way, under its old name."""
        match = next((found for found in self.matches(graph) if found.root == root), None)
        if match is None:
            raise WeftError(f"{self.name} cannot be applied to {root}")
        return _Rewriter(graph, self, match).graph()


def _find(pattern: Pattern, value: str, makers: Mapping[str, Application]) -> Match | None:
    values: dict[str, str] = {}
    applications: list[Application] = []

    def fits(part: Pattern, name: str) -> bool:
        if isinstance(part, str):
            return values.setdefault(part, name) == name
        made = makers.get(name)
        if made is None or made.operator != part[0] or len(made.operands) != len(part) - 1:
            return False
        applications.append(made)
        return all(map(fits, part[1:], made.operands))

    found = not isinstance(pattern, str) and fits(pattern, value)
    return Match(value, values, tuple(applications)) if found else None


def _is_apart(graph: Graph, match: Match) -> bool:
    """Whether nobody else needs what lies inside the pattern."""
    uses = Counter(name for a in graph.applications for name in a.operands)
    uses.update(graph.outputs)
    uses.update(list(graph.shardings))
    own = Counter(name for a in match.applications for name in a.operands)
    inner = [name for a in match.applications[1:] for name in a.results]
    return len(match.applications[0].results) == 1 and all(uses[n] == own[n] for n in inner)


class _Rewriter:
    """Writes a graph down anew, with one pattern replaced."""

    def __init__(self, graph: Graph, rewrite: Rewrite, match: Match) -> None:
        self.old, self.rewrite, self.match = graph, rewrite, match
        self.tracer = Tracer(graph.operators)
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
        made = self.rewrite.replacement(values, self.match)
        wanted = self.old.values[self.match.root]
        if (made.shape, made.dtype) != (wanted.shape, wanted.dtype):
            raise WeftError(
                f"{self.rewrite.name} makes {made.dtype}{list(made.shape)} of {wanted}: it must "
                f"make the same"
            )
        new = self.tracer.applications[before:]
        if not new or made.name not in new[-1].results:
            raise WeftError(f"{self.rewrite.name} must make its value last")
        last = new[-1]
        renamed = tuple(wanted.name if n == made.name else n for n in last.results)
        self.tracer.applications[-1] = last._replace(results=renamed)
        self.tracer.dtypes[wanted.name] = wanted.dtype
        self.known[wanted.name] = Symbol(self.tracer, wanted)


# The rewrites that Weft ships: an operator as a composition of others, or the reverse. A plan uses
# the whole operator where its index dimensions are not cut, and the parts where they are.

Values = Mapping[str, Symbol]

BLOCKS = 4
"""Into how many blocks a reduction is taken apart, where its size allows."""


def _one_dim(operator: str, count: int) -> Rewrite:
    """A reduction along one dimension as a reduction of blocks and of what they make."""

    def condition(graph: Graph, match: Match) -> bool:
        said = match.attributes(operator)
        shape = graph.values[match.values["x"]].shape
        return len(said["dimensions"]) == 1 and shape[said["dimensions"][0]] >= 2

    def replacement(v: Values, match: Match) -> Symbol:
        said = match.attributes(operator)
        x, (dim,) = v["x"], said["dimensions"]
        dim %= len(x.shape)
        monoid = "sum" if operator == "mean_dim" else operator.removesuffix("_dim")
        blocks = min(count, x.shape[dim])
        (result,) = OPERATORS[operator].dtypes([x.dtype], said)
        adds = monoid in ("sum", "prod")
        within = accumulator(result) if adds else result
        first, second = (_unless(sum_dtype(d) if adds else d, within) for d in (x.dtype, within))
        parts = apply("reduce_blocks", x, dimension=dim, blocks=blocks, monoid=monoid, dtype=first)
        keep = said.get("keepdims", False)
        made: Symbol = apply(f"{monoid}_dim", parts, dimensions=(dim,), keepdims=keep, dtype=second)
        made = made / x.shape[dim] if operator == "mean_dim" else made
        return made if made.dtype == result else made.astype(result)

    return Rewrite(f"{operator} in blocks", (operator, "x"), replacement, condition)


def _unless(own: str, wanted: str) -> str | None:
    """Return the dtype that is wanted; None where an operator makes it by itself."""
    return None if own == wanted else wanted


def _wide(x: Symbol) -> Symbol:
    """Return a value as it is added up: in float32 where it has less, so that stages round once."""
    within = accumulator(x.dtype)
    made: Symbol = x if x.dtype == within else x.astype(within)
    return made


def _as(like: Symbol, made: Symbol) -> Symbol:
    found: Symbol = made if made.dtype == like.dtype else made.astype(like.dtype)
    return found


def _softmax(v: Values, match: Match) -> Symbol:
    dim = match.attributes("softmax").get("dimension", -1)
    x = _wide(v["x"])
    e = ops.exp(x - x.max(dim, keepdims=True))
    return _as(v["x"], e / e.sum(dim, keepdims=True))


def _logsumexp(v: Values, match: Match) -> Symbol:
    said = match.attributes("logsumexp_dim")
    dims, keep = said["dimensions"], said.get("keepdims", False)
    x = _wide(v["x"])
    top = x.max(dims, keepdims=True)
    total = ops.exp(x - top).sum(dims, keepdims=True)
    made = _as(v["x"], ops.log(total) + top)
    kept = tuple(n for d, n in enumerate(made.shape) if d not in {x % made.ndim for x in dims})
    return made if keep else made.reshape(kept)


def _summed_products(v: Values, match: Match) -> Symbol:
    x, w = _wide(v["x"]), _wide(v["w"])
    return _as(v["x"], ops.prod_of(x, w).sum(-1, dtype=_unless(sum_dtype(x.dtype), x.dtype)))


def _attention(v: Values, match: Match, count: int) -> Symbol:
    """Blocks of keys with a running softmax: each its maximum, its sum and its weighted sum."""
    said = dict(match.attributes("attention"))
    blocks = min(count, v["k"].shape[-2])
    top, total, mixed = apply_all("attention_blocks", v["q"], v["k"], v["v"], blocks=blocks, **said)
    highest = top.max(-1, keepdims=True)
    weight = ops.exp(top - highest)
    below = (total * weight).sum(-1)
    above = (mixed * weight.reshape(*weight.shape, 1)).sum(-2)
    some = ops.where(below > 0, below, below * 0 + 1)
    return _as(v["q"], above / some.reshape(*some.shape, 1))


def _convolution(v: Values, match: Match, blocks: int) -> Symbol:
    """The first spatial dimension of the output in blocks, each from the rows that it reads."""
    said, x, k = dict(match.attributes("convolution")), v["x"], v["k"]
    dim, kernel_dim = said["input_spatial_dimensions"][0], said["kernel_spatial_dimensions"][0]
    (low, high), rest = said["padding"][:2], said["padding"][2:]
    stride, step = said["window_strides"][0], said["rhs_dilation"][0]
    edges = {"edge_padding_low": low, "edge_padding_high": high, "interior_padding": 0}
    spread = {key: tuple(n * (d == dim) for d in range(x.ndim)) for key, n in edges.items()}
    padded = apply("pad", x, 0, **spread)
    reach = step * (k.shape[kernel_dim] - 1) + 1
    count = (padded.shape[dim] - reach) // stride + 1
    width = -(-count // min(blocks, count))
    parts = []
    for first in range(0, count, width):
        last = min(first + width, count) - 1
        rows = slice(stride * first, stride * last + reach)
        part = padded[(*[slice(None)] * dim, rows)]
        parts.append(apply("convolution", part, k, **{**said, "padding": (0, 0, *rest)}))
    made: Symbol = ops.concatenate(parts, said["output_spatial_dimensions"][0])
    return made


def _has_rows(graph: Graph, match: Match) -> bool:
    said = match.attributes("convolution")
    made, spatial = graph.values[match.root].shape, said["output_spatial_dimensions"]
    plain = bool(spatial) and said["lhs_dilation"][0] == 1
    return plain and made[spatial[0]] >= 2 and not any(said.get("window_reversal", ()))


def _has_keys(graph: Graph, match: Match) -> bool:
    queries, keys = (graph.values[match.values[name]].shape for name in "qk")
    return keys[-2] >= 2 and queries[:-2] == keys[:-2]


@lru_cache(maxsize=64)
def rewrites_in(blocks: int) -> tuple[Rewrite, ...]:
    """All rewrites, where something is taken apart into so many blocks.

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
        ),
    )


REWRITES = rewrites_in(BLOCKS)
"""All of them."""


def rewrites_of(operator: str) -> list[Rewrite]:
    """The rewrites whose pattern has an operator at its root.

    >>> [rewrite.name for rewrite in rewrites_of("linear")]
    ['linear as matmul and add']
    """
    return [rewrite for rewrite in REWRITES if rewrite.pattern[0] == operator]

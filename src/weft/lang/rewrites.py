"""The rewrites that Weft ships, by the operators that they are about.

Each says how an operator is made of others, or back: a plan takes the whole where its index
dimensions are not cut, and the parts where they must be.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from weft.lang import ops
from weft.lang.arithmetic import apply, apply_all
from weft.lang.dtype import accumulator, sum_dtype
from weft.lang.graph import Graph
from weft.lang.operator import OPERATORS
from weft.lang.rewrite import Match, Rewrite
from weft.lang.trace import Symbol

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
        keep = said.get("keep", False)
        made: Symbol = apply(f"{monoid}_dim", parts, dimensions=(dim,), keep=keep, dtype=second)
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
    e = ops.exp(x - x.max(dim, keep=True))
    return _as(v["x"], e / e.sum(dim, keep=True))


def _logsumexp(v: Values, match: Match) -> Symbol:
    said = match.attributes("logsumexp_dim")
    dims, keep = said["dimensions"], said.get("keep", False)
    x = _wide(v["x"])
    top = x.max(dims, keep=True)
    total = ops.exp(x - top).sum(dims, keep=True)
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
    highest = top.max(-1, keep=True)
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
                not m.attributes("sum_dim").get("keep")
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

"""Operators in stages, by NumPy."""

import numpy as np
from tests.runtime.oracles import nothing, oracle


@oracle("prod_of")
def prod_of(at, x, y):
    m, n = "m" * (x.ndim > 1), "n" * (y.ndim > 1)
    rest = ["..." * (a.ndim > 2) for a in (x, y)]
    made = "..." * any(rest)
    return np.einsum(f"{rest[0]}{m}k,{rest[1]}k{n}->{made}{m}{n}k", x, y)


_UFUNCS = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def _cut(x, axis, count):
    """As many blocks of one size; the last may be short or empty."""
    width = -(-x.shape[axis] // count)
    return np.split(x, [width * n for n in range(1, count)], axis=axis)


@oracle("reduce_blocks")
def reduce_blocks(at, x):
    axis, monoid = at["dimension"], at["monoid"]
    start = nothing(monoid, x.dtype)
    made = [
        _UFUNCS[monoid].reduce(part, axis=axis, initial=start)
        for part in _cut(x, axis, at["blocks"])
    ]
    return np.stack(made, axis=axis)


@oracle("attention_blocks")
def attention_blocks(at, q, k, v):
    scores = np.einsum("...qd,...kd->...qk", q, k) / np.sqrt(q.shape[-1])
    ahead = k.shape[-2] - q.shape[-2]
    seen = np.tri(*scores.shape[-2:], ahead, bool) if at["causal"] else np.asarray(True)
    seen = np.broadcast_to(seen, scores.shape)
    lowest = np.finfo(q.dtype).min / 2
    parts = zip(*(_cut(a, -1, at["blocks"]) for a in (scores, seen)), _cut(v, -2, at["blocks"]))
    made = []
    for score, here, values in parts:
        top = score.max(axis=-1, where=here, initial=lowest)
        each = np.where(here, np.exp(np.minimum(score - top[..., None], 0)), 0)
        made.append((top, each.sum(axis=-1), each @ values))
    tops, totals, mixed = zip(*made)
    return np.stack(tops, -1), np.stack(totals, -1), np.stack(mixed, -2)

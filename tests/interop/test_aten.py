"""Every entry of the table of ATen's operators, on shards, against torch."""

from functools import cache
from random import Random

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from tests.interop.exported import Of, compare
from torch import tensor

from weft import from_torch
from weft.interop import export
from weft.interop.aten import TABLE

pytestmark = pytest.mark.slow

NAN, INF = float("nan"), float("inf")


def floats(*shape, low=-2.0, high=2.0):
    return torch.rand(*shape) * (high - low) + low


def ints(*shape, low=-5, high=6):
    return torch.randint(low, high, shape)


A, B, V = (4, 6), (6, 5), (8,)

UNARY = (
    *("abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "neg", "relu", "round", "sigmoid"),
    *("sign", "sin", "tan", "tanh", "cosh", "sinh", "asinh", "atan", "erfc", "square"),
    "logical_not",
)
BINARY = (
    *("add", "sub", "mul", "div", "maximum", "minimum", "atan2", "fmod", "remainder"),
    *("eq", "ne", "lt", "le", "gt", "ge"),
)

OPERATORS = {
    **{name: (getattr(torch, name), floats(*A)) for name in UNARY},
    **{name: (getattr(torch, name), floats(*A, low=0.1)) for name in ("log", "log1p", "sqrt")},
    **{name: (getattr(torch, name), floats(*A, low=0.1)) for name in ("rsqrt", "reciprocal")},
    **{name: (getattr(torch, name), floats(*A, low=-0.9, high=0.9)) for name in ("acos", "asin")},
    "atanh": (torch.atanh, floats(*A, low=-0.9, high=0.9)),
    "acosh": (torch.acosh, floats(*A, low=1.1)),
    **{f"{name} of two": (getattr(torch, name), floats(*A), floats(6)) for name in BINARY},
    **{
        f"{name} with a number": (lambda x, name=name: getattr(torch, name)(x, 2), floats(*A))
        for name in BINARY
        if name not in ("maximum", "minimum", "atan2")
    },
    **{
        f"{name} of integers": (getattr(torch, name), ints(*A), ints(*A, low=1))
        for name in BINARY
        if name != "atan2"
    },
    "add scaled": (lambda x, y: torch.add(x, y, alpha=3), floats(*A), floats(*A)),
    "sub scaled": (lambda x, y: torch.sub(x, y, alpha=2), ints(*A), ints(*A)),
    "rsub": (lambda x: 3 - x, floats(*A)),
    "promoted": (lambda x, y: x + y, ints(*A), floats(*A)),
    "promoted by a number": (lambda x: x * 1.5, ints(*A)),
    "compared promoted": (lambda x, y: x < y, ints(*A), floats(*A)),
    "compared with a fraction": (lambda x: x <= 1.5, ints(*A)),
    "a flag added": (lambda x: (x > 0) + x, floats(*A)),
    "floor of integers": (lambda x, y: x // y, ints(*A), ints(*A, low=1)),
    "floor by negatives": (lambda x, y: x // y, ints(*A), -ints(*A, low=1)),
    "trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), ints(*A), -ints(*A, low=1)),
    "modulo of signs": (lambda x, y: x % y, ints(*A), ints(*A, low=1) * ints(*A, low=-1, high=0)),
    "modulo of floats": (lambda x: x % -1.5, floats(*A)),
    "powers": (lambda x: (x**2, x**3, x.abs() ** 0.5, x.abs() ** 1.7, 2.0**x), floats(*A)),
    "power of two": (lambda x, y: x.abs() ** y, floats(*A), floats(*A)),
    "logic": (
        lambda x, y: ((x > 0) & (y > 0), (x > 0) | (y > 0), (x > 0) ^ (y > 0), ~(x > 0)),
        floats(*A),
        floats(6),
    ),
    "bits": (lambda x, y: (x & y, x | y, x ^ y, ~x), ints(*A), ints(*A)),
    "logic of numbers": (
        lambda x, y: (torch.logical_and(x, y), torch.logical_xor(x, y), torch.logical_or(x, y)),
        ints(*A),
        ints(*A),
    ),
    "isnan": (lambda x: (torch.isnan(x), torch.isinf(x)), tensor([[1.0, NAN, INF, -INF]])),
    "gelu": (lambda x: (F.gelu(x), F.gelu(x, approximate="tanh")), floats(*A)),
    "activations": (
        lambda x: (
            F.silu(x),
            F.leaky_relu(x, 0.2),
            F.elu(x, 0.7),
            F.softplus(x),
            F.hardswish(x),
            F.hardsigmoid(x),
            F.relu6(x),
            F.mish(x),
            F.selu(x),
            F.hardtanh(x),
            F.celu(x),
            F.logsigmoid(x),
            F.tanhshrink(x),
        ),
        floats(*A, low=-5, high=5),
    ),
    "where": (
        lambda x, y: (torch.where(x > 0, x, y), torch.where(x > 0, x, 3.0)),
        floats(*A),
        floats(6),
    ),
    "masked_fill": (lambda x: x.masked_fill(x > 0, -INF), floats(*A)),
    "clamp": (lambda x: (x.clamp(-1, 1), x.clamp(min=0.5), x.clamp(max=0.5)), floats(*A)),
    "clamp by tensors": (lambda x, y: x.clamp(y, y + 1), floats(*A), floats(6)),
    "dtypes": (lambda x: (x.to(torch.float64), x.long(), x.bool(), x.half().float()), floats(*A)),
    "matrices": (
        lambda x, y: (x @ y, torch.mm(x, y), x @ y[:, 0], x[0] @ y, x[0] @ x[1]),
        floats(*A),
        floats(*B),
    ),
    "batches": (
        lambda x, y: (x @ y, torch.bmm(x, y[0].expand(2, 6, 5))),
        floats(2, 4, 6),
        floats(3, 1, 6, 5)[:1],
    ),
    "broadcast batches": (torch.matmul, floats(2, 1, 4, 6), floats(3, 6, 5)),
    "linear": (
        lambda x, w, b: (F.linear(x, w, b), F.linear(x, w), F.linear(x[0], w, b)),
        floats(4, 6),
        floats(5, 6),
        floats(5),
    ),
    "addmm": (
        lambda b, x, y: (
            torch.addmm(b, x, y),
            torch.addmm(b, x, y, beta=2, alpha=0.5),
            torch.addmm(b, x, y, beta=0),
        ),
        floats(5),
        floats(*A),
        floats(*B),
    ),
    "baddbmm": (torch.baddbmm, floats(2, 4, 5), floats(2, 4, 6), floats(2, 6, 5)),
    "einsum": (lambda x, y: torch.einsum("bmk,kn->bnm", x, y), floats(2, 4, 6), floats(6, 3)),
    "reductions": (
        lambda x: (
            x.sum(),
            x.sum(0),
            x.mean(-1, keepdim=True),
            x.amax((0, 1)),
            x.amin(1),
            x.prod(0),
            x.logsumexp(1),
            x.max(),
            x.min(),
            x.mean(),
        ),
        floats(*A),
    ),
    "extremes": (lambda x: (x.max(1).values, x.min(0, keepdim=True).values), floats(*A)),
    "sums of integers": (lambda x: (x.sum(), x.sum(1), (x > 0).sum(0), x.prod(1)), ints(*A)),
    "truth": (
        lambda x: ((x > 0).any(1), (x > -1).all(0, keepdim=True), (x > 0).any(), x.any(), x.all(0)),
        floats(*A),
    ),
    "variance": (
        lambda x: (x.var(1), x.var(0, unbiased=False), x.std(), x.var((0, 1))),
        floats(*A),
    ),
    "softmax": (lambda x: (x.softmax(-1), x.softmax(0), x.log_softmax(1)), floats(*A)),
    "cumsum": (lambda x: (x.cumsum(0), x.cumsum(-1)), floats(*A)),
    "cross entropy": (lambda x: -(x.log_softmax(-1) * x.softmax(-1)).sum(-1).mean(), floats(*A)),
    "views": (
        lambda x: (
            x.view(2, 12),
            x.reshape(3, 8),
            x.flatten(),
            x.unsqueeze(1),
            x[None].squeeze(),
            x[:, None].squeeze(1),
            x.T,
            x.t(),
            x.transpose(0, 1),
            x.permute(1, 0),
            x.unflatten(1, (2, 3)),
            x.contiguous(),
            x.movedim(0, 1),
        ),
        floats(*A),
    ),
    "expand": (
        lambda x: (x[:, None].expand(4, 3, 6), x.expand(2, -1, -1), x[:1].expand_as(x)),
        floats(*A),
    ),
    "repeat": (
        lambda x: (x.repeat(2, 3), x.repeat(2, 1, 1), x.repeat_interleave(2, 0)),
        floats(*A),
    ),
    "slices": (
        lambda x: (x[1:3], x[:, ::2], x[-1], x[..., -2:], x[1:, 2], x[0:0], x[:, 5:99]),
        floats(*A),
    ),
    "parts": (
        lambda x: (*x.split(2), *x.split([1, 5], 1), *x.chunk(3, -1), *x.unbind(0), *x.chunk(4, 1)),
        floats(*A),
    ),
    "joined": (
        lambda x, y: (
            torch.cat([x, y]),
            torch.cat([x, y, x], -1),
            torch.stack([x, y]),
            torch.stack([x, y], -1),
            torch.hstack([x, y]),
        ),
        floats(*A),
        floats(*A),
    ),
    "joined of two dtypes": (lambda x, y: torch.cat([x, y]), floats(*A), ints(*A)),
    "flip": (lambda x: (x.flip(0), x.flip(0, 1), x.roll(2, 1)), floats(*A)),
    "pad": (
        lambda x: (F.pad(x, (1, 2)), F.pad(x, (0, 1, 2, 0), value=3.0), F.pad(x, (-1, 2, 1, -2))),
        floats(*A),
    ),
    "made": (
        lambda x: (
            x + torch.ones(6),
            x * torch.zeros_like(x),
            torch.full((2, 3), 7.0),
            torch.arange(6) + x,
            torch.arange(2, 14, 2),
            torch.full_like(x, 2),
            torch.eye(4, 6) * x,
            x.new_ones(2),
            torch.arange(3.0),
        ),
        floats(*A),
    ),
    "constants": (lambda x: x + torch.tensor([1.0, 2, 3, 4, 5, 6]), floats(*A)),
    "triangles": (lambda x: (x.tril(), x.triu(1), torch.ones(4, 6).tril(-1) * x), floats(*A)),
    "embedding": (lambda i, t: (F.embedding(i, t), t[i]), ints(2, 3, low=0, high=4), floats(4, 6)),
    "places": (
        lambda i, x: (x[:, i], x.index_select(1, i[0]), x[:, i - 5]),
        ints(2, 3, low=0, high=4),
        floats(3, 5, 2),
    ),
    "several places": (
        lambda i, x: (x[i, i], x[:, i, i % 2], x[i[0], :, i[0] % 2], x[i[:, :1], i[0]]),
        ints(2, 3, low=-2, high=2),
        floats(3, 5, 2),
    ),
    "elements along a dimension": (
        lambda i, x: (x.gather(1, i), x.gather(0, i % 2), F.cross_entropy(x, i[:, 0])),
        ints(4, 3, low=0, high=6),
        floats(*A),
    ),
    "sums at places": (
        lambda i, x, y: (
            x.scatter_add(1, i, y),
            x.scatter(1, i[:, :1], y),
            x.scatter(1, i[:, :1], 7.0),
            x.scatter_reduce(1, i, y, "amax"),
            x.index_put((i[0],), y[:3], accumulate=True),
            x.index_put((i[0], i[0]), y[0, :3], accumulate=True),
            torch.zeros(5, 7).index_add(0, i[0], torch.ones(3, 7)),
        ),
        ints(4, 3, low=0, high=4),
        floats(*A),
        floats(*A),
    ),
    "parts replaced": (
        lambda x, y: (
            torch.slice_scatter(x, y[:, :2], 1, 1, 5, 2),
            torch.select_scatter(x, y[0], 0, -1),
            torch.slice_scatter(x, y[:0], 0, 3, 3),
            x.clone().masked_fill_(y > 0, 0.0),
            x.index_put((y > 0,), torch.tensor(2.0)),
            torch.diagonal(x, 1),
            x.clone().copy_(y[0]),
        ),
        floats(*A),
        floats(*A),
    ),
    "orders": (
        lambda x: (
            *x.sort(1),
            x.sort(0, descending=True).values,
            *x.sort(dim=1, descending=True, stable=True),
            *x.topk(2),
            *x.topk(2, 0),
            *x.topk(2, 1, largest=False),
            *x.max(1),
            x.min(0, keepdim=True).indices,
            x.argmax(1),
            x.argmin(),
            x.argmax(0, keepdim=True),
            torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])),
            torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0]), right=True),
        ),
        torch.randperm(24).reshape(A) / 8 - 1,
    ),
    "running products": (lambda x: (x.cumprod(1), x.cumprod(0)), floats(*A)),
    "rounded": (
        lambda x, y: (x.trunc(), *(torch.div(x, y, rounding_mode=m) for m in ("floor", "trunc"))),
        floats(*A),
        floats(*A, low=0.2),
    ),
    "shifts": (
        lambda x: (
            *(x << 2, x >> 1, x << x.abs()),
            torch.bitwise_left_shift(x, x.abs()),
            torch.bitwise_right_shift(x, 1),
        ),
        ints(*A),
    ),
    "variance and mean": (
        lambda x: (*torch.var_mean(x, 1), *torch.var_mean(x, keepdim=True)),
        floats(*A),
    ),
    "complex numbers": (
        lambda x, y: (
            torch.view_as_real(torch.complex(x, y) * torch.polar(x, y).conj()),
            torch.view_as_complex(x.reshape(4, 3, 2)).real,
            torch.complex(x, y).imag,
        ),
        floats(*A),
        floats(*A),
    ),
    "transposed convolutions": (
        lambda x, w: (
            F.conv_transpose1d(x, w, stride=2, padding=1, output_padding=1),
            F.conv_transpose1d(x, w, groups=2, dilation=2),
            F.conv_transpose1d(x[0], w, padding=2),
        ),
        floats(2, 4, 5),
        floats(4, 3, 3),
    ),
    "resized": (
        lambda x: (
            F.interpolate(x, scale_factor=2),
            F.interpolate(x, (5, 7)),
            F.interpolate(x, scale_factor=2, mode="bilinear"),
            F.adaptive_max_pool2d(x, (2, 2)),
            F.instance_norm(x),
        ),
        floats(2, 3, 4, 6),
    ),
    "cholesky": (
        lambda x: torch.linalg.cholesky(x @ x.mT + 9 * torch.eye(4)),
        floats(*A),
    ),
    "norms": (
        lambda x: (
            F.layer_norm(x, (6,)),
            F.layer_norm(x, (4, 6)),
            F.rms_norm(x, (6,)),
            F.group_norm(x, 2),
            F.normalize(x, dim=-1),
        ),
        floats(3, 4, 6),
    ),
    "scaled norms": (
        lambda x, w, b: (
            F.layer_norm(x, (6,), w, b),
            F.layer_norm(x, (6,), w),
            F.layer_norm(x, (6,), None, b),
            F.rms_norm(x, (6,), w),
            F.group_norm(x.mT, 3, w, b),
        ),
        floats(3, 4, 6),
        floats(6),
        floats(6),
    ),
    "batch norm": (
        lambda x, m, v: (
            F.batch_norm(x, m, v),
            F.batch_norm(x, m, v, v, m),
            F.batch_norm(x[:, :, 0], m, v, v),
        ),
        floats(3, 4, 6),
        floats(4),
        floats(4, low=0.5),
    ),
    "lengths": (
        lambda x: (
            x.norm(),
            x.norm(dim=1),
            x.norm(1, 0, keepdim=True),
            torch.linalg.vector_norm(x, float("inf")),
        ),
        floats(*A),
    ),
    "detached": (lambda x: (x.detach() + x.clone(), x * 2), floats(*A)),
    "cosine": (F.cosine_similarity, floats(*A), floats(*A)),
}


class Seen(dict):
    """A table that remembers what was looked up."""

    def __init__(self, table):
        super().__init__(table)
        self.names = set()

    def __getitem__(self, name):
        self.names.add(name)
        return super().__getitem__(name)


@cache
def graph_of(kind, name):
    """The graph of a program, and the entries of the table that it came to."""
    function, *args = KINDS[kind][name]
    with pytest.MonkeyPatch.context() as patch:
        seen = Seen(TABLE)
        patch.setattr(export, "TABLE", seen)
        return from_torch(Of(function), *args), seen.names


def tried(kind, name):
    """On meshes and under shardings at random."""
    function, *args = KINDS[kind][name]
    for seed in range(2):
        compare(Of(function), args, Random(f"{name} {seed}"), graph_of(kind, name)[0])


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name):
    tried("operators", name)


def sdpa(**said):
    return lambda q, k, v, *mask: F.scaled_dot_product_attention(q, k, v, *mask, **said)


def qkv(*batch, heads=None, queries=6, keys=6):
    few = (heads,) if heads else batch[-1:]
    kept = (*batch[:-1], *few)
    return floats(*batch, queries, 4), floats(*kept, keys, 4), floats(*kept, keys, 5)


EYE = torch.eye(6, dtype=torch.bool)
ATTENTION = {
    "plain": (sdpa(), *qkv(2, 4)),
    "causal": (sdpa(is_causal=True), *qkv(2, 4)),
    "one batch": (sdpa(is_causal=True), *qkv(4)),
    "no batch": (sdpa(), *(x[0] for x in qkv(4))),
    "scaled": (sdpa(scale=0.3), *qkv(2, 4)),
    "causal with more keys": (sdpa(is_causal=True), *qkv(2, 4, keys=9)),
    "causal with more queries": (sdpa(is_causal=True), *qkv(2, 4, queries=9)),
    "shared heads": (sdpa(enable_gqa=True), *qkv(2, 4, heads=2)),
    "shared causal heads": (sdpa(enable_gqa=True, is_causal=True), *qkv(2, 4, heads=2)),
    "shared masked heads": (sdpa(enable_gqa=True), *qkv(2, 4, heads=2), EYE.logical_not()),
    "a mask": (sdpa(), *qkv(2, 4), EYE.logical_not()),
    "a mask that hides a query": (sdpa(), *qkv(2, 4), EYE & (torch.arange(6) > 2)),
    "a mask of each batch": (sdpa(), *qkv(2, 4), floats(2, 1, 6, 6) > 0),
    "a bias": (sdpa(), *qkv(2, 4), floats(4, 6, 6)),
    "a bias that hides": (sdpa(scale=1.0), *qkv(2, 4), EYE.float().log()),
    "repeated keys": (sdpa(), *(x if n else x.expand(3, 4, 6, 4) for n, x in enumerate(qkv(1, 4)))),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name):
    tried("attention", name)


IMAGE = floats(2, 4, 9, 8)
WINDOWS = {
    "conv2d": (F.conv2d, IMAGE, floats(6, 4, 3, 2)),
    "strided": (lambda x, w: F.conv2d(x, w, None, (2, 1), (1, 2), 2), IMAGE, floats(6, 4, 3, 3)),
    "grouped": (lambda x, w, b: F.conv2d(x, w, b, groups=2), IMAGE, floats(6, 2, 3, 3), floats(6)),
    "depthwise": (lambda x, w: F.conv2d(x, w, padding="same", groups=4), IMAGE, floats(4, 1, 3, 3)),
    "one image": (lambda x, w: F.conv2d(x[0], w), IMAGE, floats(6, 4, 3, 3)),
    "conv1d": (
        lambda x, w, b: F.conv1d(x, w, b, 2, 1),
        floats(2, 4, 9),
        floats(6, 4, 3),
        floats(6),
    ),
    "conv3d": (
        lambda x, w: F.conv3d(x, w, None, 1, 1),
        floats(1, 2, 4, 5, 4),
        floats(3, 2, 2, 3, 3),
    ),
    "max": (
        lambda x: (
            F.max_pool2d(x, 2),
            F.max_pool2d(x, 3, 2, 1),
            F.max_pool2d(x, (3, 2), 1),
            F.max_pool2d(x[0], 2),
            F.max_pool1d(x[0], 3),
        ),
        IMAGE,
    ),
    "max that hangs over": (
        lambda x: (F.max_pool2d(x, 2, ceil_mode=True), F.max_pool2d(x, 3, 2, 1, ceil_mode=True)),
        IMAGE,
    ),
    "max apart": (lambda x: F.max_pool2d(x, 3, 1, 1, 2), IMAGE),
    "mean": (
        lambda x: (
            F.avg_pool2d(x, 2),
            F.avg_pool2d(x, 3, 2, 1),
            F.avg_pool2d(x, (3, 2), 1),
            F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            F.avg_pool1d(x[0], 3, 2),
            F.avg_pool2d(x, 3, 2, 1, divisor_override=5),
        ),
        IMAGE,
    ),
    "mean that hangs over": (
        lambda x: (
            F.avg_pool2d(x, 2, ceil_mode=True),
            F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        ),
        IMAGE,
    ),
    "three dimensions": (
        lambda x: (F.max_pool3d(x, 2), F.avg_pool3d(x, 2, 1), F.adaptive_avg_pool3d(x, (2, 3, 2))),
        floats(1, 2, 4, 5, 4),
    ),
    "adaptive": (
        lambda x: (
            F.adaptive_avg_pool2d(x, 1),
            F.adaptive_avg_pool2d(x, (3, 4)),
            F.adaptive_avg_pool2d(x, (4, 3)),
            F.adaptive_avg_pool2d(x, (None, 8)),
            F.adaptive_avg_pool1d(x[0], 5),
        ),
        IMAGE,
    ),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name):
    tried("windows", name)


DRAWS = {
    "random numbers": (
        lambda x: (
            F.dropout(x, 0.5) + torch.bernoulli(x, p=0.5) + torch.rand(x.shape),
            torch.rand_like(x) + torch.randn(x.shape) + torch.randn_like(x) + torch.normal(x, 1.0),
            torch.empty_like(x).uniform_() + torch.empty(x.shape).normal_(),
            torch.empty_like(x).exponential_(2.0) + torch.randint(5, x.shape),
            torch.randint(2, 5, x.shape) + torch.randint_like(x, 9) + torch.randint_like(x, 1, 9),
            torch.randperm(6),
        ),
        floats(4, 6),
    )
}
"""Programs whose results are compared in `test_random`."""
KINDS = {"operators": OPERATORS, "attention": ATTENTION, "windows": WINDOWS, "draws": DRAWS}


def test_every_entry_is_tried():
    """Programs of the tests above come to every operator of the table."""
    seen = set[str]().union(*(graph_of(kind, name)[1] for kind in KINDS for name in KINDS[kind]))
    assert sorted(set(TABLE) - seen) == []

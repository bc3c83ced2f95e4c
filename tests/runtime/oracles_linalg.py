"""Solvers, transforms, sorting and what networks are made of, by JAX, NumPy and torch."""

import jax
import numpy as np
import torch
from jax import lax
from tests.runtime.oracles import oracle
from torch.nn import functional


@oracle("cholesky")
def cholesky(at, x):
    return torch.linalg.cholesky(torch.asarray(x), upper=not at["lower"]).numpy()


@oracle("triangular_solve")
def triangular_solve(at, a, b):
    return lax.linalg.triangular_solve(
        a,
        b,
        left_side=at["left_side"],
        lower=at["lower"],
        transpose_a=at["transpose_a"] != "NO_TRANSPOSE",
        conjugate_a=at["transpose_a"] == "ADJOINT",
        unit_diagonal=at["unit_diagonal"],
    )


@oracle("fft")
def fft(at, x):
    return lax.fft(x, at["fft_type"], at["fft_length"])


@oracle("sort")
def sort(at, *operands):
    axis = at["dimension"] % operands[0].ndim
    if at.get("comparison_direction", "LT") == "LT":
        return lax.sort(operands, dimension=axis, num_keys=1)
    order = np.argsort(-operands[0], axis=axis, stable=True)
    return tuple(np.take_along_axis(x, order, axis=axis) for x in operands)


@oracle("topk")
def topk(at, x):
    values, places = lax.top_k(x, at["k"])
    return values, np.asarray(places).astype("int64")


@oracle("cumsum")
def cumsum(at, x):
    x = x.astype("int64") if x.dtype.kind == "i" else x
    made = lax.cumsum(x, at["dimension"] % x.ndim, reverse=at.get("reverse", False))
    return made - x if at.get("exclusive", False) else made


@oracle("batch_norm_inference")
def batch_norm_inference(at, x, scale, offset, mean, variance):
    moved = torch.asarray(np.moveaxis(x, at["feature_index"], -1).reshape(-1, scale.size))
    mean, variance, scale, offset = map(torch.asarray, (mean, variance, scale, offset))
    made = functional.batch_norm(moved, mean, variance, scale, offset, eps=at["epsilon"])
    shape = np.moveaxis(x, at["feature_index"], -1).shape
    return np.moveaxis(made.numpy().reshape(shape), -1, at["feature_index"])


@oracle("softmax")
def softmax(at, x):
    return jax.nn.softmax(x, axis=at["dimension"])


@oracle("log_softmax")
def log_softmax(at, x):
    return jax.nn.log_softmax(x, axis=at["dimension"])


@oracle("layer_norm")
def layer_norm(at, x, *vectors):
    x, *vectors = map(torch.asarray, (x, *vectors))
    return functional.layer_norm(x, x.shape[-1:], *vectors, eps=at.get("eps", 1e-5)).numpy()


@oracle("rms_norm")
def rms_norm(at, x, *vectors):
    x, *vectors = map(torch.asarray, (x, *vectors))
    return functional.rms_norm(x, x.shape[-1:], *vectors, eps=at.get("eps", 1e-6)).numpy()


@oracle("attention")
def attention(at, *operands):
    q, k, v = (torch.asarray(x.reshape((1,) * (4 - x.ndim) + x.shape)) for x in operands)
    mask = None
    if at.get("causal", False):
        ahead = k.shape[-2] - q.shape[-2]
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril(ahead)
    made = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=at.get("scale"), enable_gqa=True
    )
    return made.numpy().reshape(*operands[0].shape[:-1], -1)

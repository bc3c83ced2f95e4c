"""How many bytes kernels take beside their operands and results, at most, as measured."""

from __future__ import annotations

from math import prod

from weft.lang.block import Block
from weft.lang.operator import Operator

TIMES = {
    "attention": 4.0,
    "cbrt": 2.25,
    "count_leading_zeros": 2.5,
    "divide": 1.5,
    "gelu": 2.25,
    "layer_norm": 1.25,
    "log_softmax": 1.25,
    "logistic": 2.5,
    "logsumexp_dim": 2.25,
    "matmul": 0.0,
    "popcnt": 2.25,
    "remainder": 3.25,
    "round_nearest_afz": 4.5,
    "shift_left": 2.5,
    "shift_right_arithmetic": 2.25,
    "shift_right_logical": 5.0,
    "silu": 2.5,
    "softmax": 1.25,
    "sort": 2.5,
    "topk": 4.5,
}
"""The largest of operands and results so many times; once where nothing is said."""

LEAST = 4
"""Bytes of an element: what is smaller has places and numbers beside it that are not."""


def workspace(operator: Operator, block: Block, itemsize: int) -> int:
    """The bytes that a kernel takes for a box, beside operands and results.

    >>> from weft.lang import Signature
    >>> line = Signature.of("m n -> m n", [(8, 4)])
    >>> workspace(Operator("relu", "m n -> m n"), Block(None, line, {}, line.space), 4)
    128
    """
    if operator.name == "convolution" and operator.workspace is None:
        return _convolution(block) * max(LEAST, itemsize) + _widened(operator, block, itemsize)
    largest = max((prod(b.shape) for b in (*block.operands, *block.results)), default=0)
    times = TIMES.get(operator.name, 1.0) if operator.workspace is None else operator.workspace
    return round(times * largest * max(LEAST, itemsize)) + _widened(operator, block, itemsize)


def _widened(operator: Operator, block: Block, itemsize: int) -> int:
    """Return the bytes of operands and results in float32, where a kernel adds up in it."""
    if not operator.accumulates or itemsize >= LEAST:
        return 0
    return LEAST * sum(prod(box.shape) for box in (*block.operands, *block.results))


def _convolution(block: Block) -> int:
    """The padded input, some elements of all windows side by side, and two sums of products."""
    spans = dict(zip(block.signature.sizes, block.box.shape))
    elements = [n for name, n in spans.items() if name.startswith("u")]
    inputs, results = prod(block.image(0).shape), sum(prod(b.shape) for b in block.results)
    channels = spans.get("c", 1)
    is_line = spans.get("g", 1) == channels == spans.get("f", 1) == 1
    if is_line and sum(n > 1 for n in elements) == 1:
        padded = inputs if block.image(0) != block.operands[0] else 0
        return padded + inputs // 3 + results
    joined = min(prod(elements), max(1, 256 // max(1, channels)))
    return 2 * inputs + results // max(1, spans.get("f", 1)) * channels * joined + 2 * results

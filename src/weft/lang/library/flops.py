"""How operations are counted where an operator sees dimensions whole."""

from __future__ import annotations

from collections.abc import Callable
from math import log2, prod

from weft.lang.block import Attributes
from weft.lang.operator import Flops
from weft.lang.signature import Signature


def per_batch(total: Callable[[Signature, Attributes], float]) -> Flops:
    """The operations of one batch, shared out among the points of what is seen whole.

    >>> line = Signature.of("m [k] -> m [k]", [(8, 4)])
    >>> per_batch(lambda line, attributes: 12)(line, {})
    3.0
    """

    def flops(line: Signature, attributes: Attributes) -> float:
        points = prod(line.sizes[name] for name in line.notation.whole)
        return total(line, attributes) / points if points else 0

    return flops


def n_log_n(count: int) -> float:
    """The count times its binary logarithm.

    >>> n_log_n(8), n_log_n(1), n_log_n(0)
    (24.0, 0.0, 0.0)
    """
    return count * log2(count) if count else 0.0

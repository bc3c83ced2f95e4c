"""Kernels of reductions by a monoid."""

from __future__ import annotations

from math import prod
from typing import Any

from weft.errors import WeftError
from weft.lang.block import Block, Kernel
from weft.lang.dtype import Dtypes, accumulator, dtype_name
from weft.lang.kernels.dtypes import cast, summing
from weft.lang.kernels.monoids import combination, reduction


def reduce(block: Block, *operands: Any) -> Any:
    """Each input reduced, and its initial value, which counts once."""
    if block.attributes.get("region") in ("custom", "replace"):
        raise WeftError("a reduction by a region of its own cannot be run box by box")
    monoid, axes = block.attributes.get("monoid", "sum"), tuple(block.attributes["dimensions"])
    half, made = len(operands) // 2, []
    for x, init in zip(operands[:half], operands[half:]):
        wide = accumulator(dtype_name(x.dtype))
        each = cast(block.xp, x, wide)
        total = reduction(block.xp, monoid, each.dtype)(each, axes) if axes else each
        total = combination(block.xp, monoid, each.dtype)(total, cast(block.xp, init, wide))
        made.append(cast(block.xp, total, dtype_name(x.dtype)))
    return tuple(made)


def along(monoid: str, dtypes: Dtypes, mean: bool = False) -> Kernel:
    """Return the kernel that reduces along `dimensions`, kept as single ones if `keep` is true.

    A mean is divided by the number of all elements, so that the means of parts add up.
    """

    def kernel(block: Block, x: Any) -> Any:
        xp, axes = block.xp, tuple(dim % x.ndim for dim in block.attributes["dimensions"])
        (result,) = dtypes([dtype_name(x.dtype)], block.attributes)
        within = accumulator(result)
        x = x if monoid in ("sum", "prod") and axes else cast(xp, x, within)
        made = reduction(xp, monoid, summing(xp, within))(x, axes) if axes else x
        if mean:
            whole = block.signature.operand_shapes[0]
            made = made / prod(whole[axis] for axis in axes)
        return cast(xp, xp.reshape(made, block.results[0].shape), result)

    return kernel

"""Kernels of reductions by a monoid."""

from __future__ import annotations

from typing import Any

from weft.errors import WeftError
from weft.lang.block import Block, Kernel
from weft.lang.kernels.monoids import combination, reduction


def reduce(block: Block, *operands: Any) -> Any:
    """Each input reduced, and its initial value, which counts once."""
    if block.attributes.get("region") in ("custom", "replace"):
        raise WeftError("a reduction by a region of its own cannot be run box by box")
    monoid, axes = block.attributes.get("monoid", "sum"), tuple(block.attributes["dimensions"])
    half, made = len(operands) // 2, []
    for x, init in zip(operands[:half], operands[half:]):
        total = reduction(block.xp, monoid, x.dtype)(x, axes) if axes else x
        made.append(combination(block.xp, monoid, x.dtype)(total, init))
    return tuple(made)


def along(monoid: str, mean: bool = False) -> Kernel:
    """The kernel that reduces along `dimensions`, keeping them as single if `keep` says so."""

    def kernel(block: Block, x: Any) -> Any:
        axes = tuple(dim % x.ndim for dim in block.attributes["dimensions"])
        made = reduction(block.xp, monoid, x.dtype)(x, axes) if axes else x
        if mean:
            whole = block.signature.operand_shapes[0]
            for axis in axes:
                made = made / whole[axis]
        return block.xp.reshape(made, block.results[0].shape)

    return kernel

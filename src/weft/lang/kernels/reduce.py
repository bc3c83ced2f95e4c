"""Kernels of reductions by a monoid."""

from __future__ import annotations

from typing import Any

from weft.errors import WeftError
from weft.lang.block import Block, Kernel
from weft.lang.kernels.monoids import combination, reduction


def reduce(block: Block, *operands: Any) -> Any:
    """One input reduced, and an initial value that counts once."""
    if block.attributes.get("region") == "custom" or len(operands) != 2:
        raise WeftError("a reduction by a region of its own cannot be run box by box")
    x, init = operands
    monoid, axes = block.attributes.get("monoid", "sum"), tuple(block.attributes["dimensions"])
    made = reduction(block.xp, monoid, x.dtype)(x, axes) if axes else x
    return combination(block.xp, monoid, x.dtype)(made, init)


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

"""The order that a region defines on its first two arguments."""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir

_TURNED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "EQ": "EQ", "NE": "NE"}
_CUSTOM = "custom"


def comparison(block: Any) -> str:
    """How a region compares its first two arguments: LT, GT and so on, or `custom`."""
    (returned,) = block.operations[len(block.operations) - 1].operands
    made = _maker(returned)
    if made is None or made.name != "stablehlo.compare":
        return _CUSTOM
    arguments = list(block.arguments)
    sides = [_behind(value) for value in made.operands]
    numbers = [
        arguments.index(side) if side in arguments else -1 for side in sides if side is not None
    ]
    if numbers == [0, 1]:
        return _direction(made)
    return _TURNED[_direction(made)] if numbers == [1, 0] else _CUSTOM


def _maker(value: Any) -> Any:
    return None if isinstance(value, ir.BlockArgument) else value.owner


def _direction(compare: Any) -> str:
    """The attribute reads `#stablehlo<comparison_direction LT>`."""
    return str(compare.attributes["comparison_direction"]).rstrip(">").rpartition(" ")[2]


def _behind(value: Any) -> Any:
    """The argument behind selections that make one zero, or one NaN, of several, as JAX does."""
    made = _maker(value)
    while made is not None:
        if made.name != "stablehlo.select":
            return None
        flag, _, value = made.operands
        asked = _maker(flag)
        if asked is None or asked.name != "stablehlo.compare":
            return None
        if _direction(asked) not in ("EQ", "NE"):
            return None
        made = _maker(value)
    return value

"""What the text of a StableHLO module says, as plain records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from weft.lang import Value
from weft.values import FrozenMap, Point


class Region(NamedTuple):
    """A block inside an operation; what it uses and does not make is from outside."""

    arguments: tuple[Value, ...]
    body: tuple[Operation, ...]
    returned: tuple[str, ...]


class Operation(NamedTuple):
    """One operation; values have the names that the printer gives them."""

    name: str
    operands: tuple[str, ...]
    operand_shapes: tuple[Point, ...]
    captured: Mapping[str, Point]
    """What its regions use from outside, with shapes, if they are not read."""
    results: tuple[Value, ...]
    attributes: FrozenMap[str, Any]
    shardings: tuple[str, ...]
    """Those of the results, or nothing at all."""
    callee: str
    """The function that stands for it, if there is one."""
    regions: tuple[Region, ...] = ()
    """The regions of loops, choices, manual and named computations."""


class Function(NamedTuple):
    """A function of one block; a sharding is empty where there is none."""

    arguments: tuple[Value, ...]
    argument_shardings: tuple[str, ...]
    body: tuple[Operation, ...]
    returned: tuple[str, ...]
    returned_shardings: tuple[str, ...]


class Module(NamedTuple):
    """What the text of a module says: `main` and whatever it calls."""

    meshes: tuple[str, ...]
    functions: Mapping[str, Function]
    main: str

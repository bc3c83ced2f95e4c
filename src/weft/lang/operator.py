"""`Operator`: a line of index notation and the kernel that computes one box of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from weft.errors import WeftError
from weft.lang.signature import Signature
from weft.values import Point

Attributes: TypeAlias = Mapping[str, Any]
"""What an application says beside its operands: numbers, names, and tuples of them."""

Sign: TypeAlias = Callable[[Sequence[Point], Attributes], Signature]
"""Makes the signature of an application from the shapes of its operands and its attributes."""

Passes: TypeAlias = Literal["", "forward", "backward", "both"]


@dataclass(frozen=True, slots=True)
class Operator:
    """A block operation: its index notation, fixed or made from shapes and attributes.

    >>> halve = Operator("halve", "n -> n", passes="both")
    >>> halve.sign([(8,)]).result_shapes
    ((8,),)
    """

    name: str
    notation: str | Sign
    """The line, or what makes a signature from shapes and attributes."""
    passes: Passes = ""
    """How propagation goes through it before all others: pointwise operators both ways, slices of
    a position that is computed forward, broadcasts backward and only after the others."""

    def sign(self, shapes: Sequence[Point], attributes: Attributes | None = None) -> Signature:
        """The signature of an application to operands of those shapes."""
        given = attributes or {}
        try:
            if isinstance(self.notation, str):
                numbers = {name: n for name, n in given.items() if isinstance(n, int)}
                return Signature.of(self.notation, shapes, numbers=numbers)
            return self.notation(shapes, given)
        except WeftError as error:
            error.add_note(
                f"while applying {self.name} to {', '.join(map(str, map(list, shapes)))}"
            )
            raise


class Library(dict[str, Operator]):
    """Operators by name.

    >>> library = Library()
    >>> twice = library.add(Operator("twice", "n -> n"))
    >>> library.find("twice") is twice
    True
    """

    def add(self, operator: Operator) -> Operator:
        """Add an operator whose name is not taken."""
        if operator.name in self:
            raise WeftError(f"there is an operator {operator.name} already")
        self[operator.name] = operator
        return operator

    def find(self, name: str) -> Operator:
        """The operator of that name."""
        if name not in self:
            close = [other for other in self if other[:3] == name[:3]][:5]
            hint = f"did you mean {' or '.join(close)}?" if close else None
            raise WeftError(f"there is no operator {name}", hint=hint)
        return self[name]


OPERATORS = Library()
"""The operators that Weft ships, and those that a user adds."""

"""`Operator`: a line of index notation and the kernel that computes one box of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from weft.draw import Drawing, Drawn, clip
from weft.errors import WeftError
from weft.lang.attributes import (
    RULE_ATTRIBUTE,
    Declared,
    Kind,
    attributes_named,
    check_attributes,
    declared,
    names_of,
)
from weft.lang.dtype import Conversion, Dtypes, like_first, numbers_only, separate
from weft.lang.field import short_repr
from weft.lang.kernel import Accumulates, Attributes, Block, Kernel, accumulating
from weft.lang.signature import Signature
from weft.lang.signature_picture import Cell, draw_operator
from weft.space import ZRange
from weft.values import FrozenMap, Point, freeze

if TYPE_CHECKING:
    from weft.lang.rewrite import Rewrite

Sign: TypeAlias = Callable[[Sequence[Point], Attributes], Signature]
"""Returns the signature of an application from the shapes of its operands and its attributes."""

Flops: TypeAlias = Callable[[Signature, Attributes], float]
"""Returns the operations of one sub-problem of an application."""

Count: TypeAlias = Callable[[Signature, ZRange, Attributes], int]
"""Returns the operations of a box of an application."""

Workspace: TypeAlias = Callable[[Block], int]
"""Returns the elements that a kernel needs for a box, beside operands and results."""

Passes: TypeAlias = Literal["", "forward", "backward", "both"]

Group: TypeAlias = tuple[int, ...] | EllipsisType
"""Operands that may be partial together; `...` for all of them."""

Keeps: TypeAlias = Mapping[str, Sequence[Group]]
"""For each monoid the groups of operands that may be partial by it."""

NOTHING: Keeps = FrozenMap(())
ANY = "any"
OWN = "own"
ORDERED = frozenset(["max", "min"])
"""The monoids that only compare numbers, and so work alike in every dtype."""
INEXACT = ("float", "bfloat", "complex")
"""The prefixes of dtypes that do not wrap around."""


@dataclass(frozen=True, slots=True, eq=False)
class Operator(Drawn):
    """A block operation: its index notation, kernel, dtype rule and cost.

    >>> halve = Operator("halve", "n -> n", lambda block, x: x / 2, passes="both")
    >>> halve.sign([(8,)]).result_shapes
    ((8,),)
    """

    name: str
    notation: str | Sign
    """The line, or a function from shapes and attributes to a signature."""
    kernel: Kernel | None = None
    """Computes one box: `kernel(block, *operands)`. Without one the operator is only planned."""
    passes: Passes = ""
    """The directions in which axes propagate through it with priority: pointwise operators both,
    slices at computed indices forward, broadcasts backward and only after the others."""
    keeps: Keeps | Callable[[int], Keeps] = NOTHING
    """For a monoid, which operands may be partial by it, so that the results are partial too:
    a product keeps a partial sum in either factor, `{"sum": [(0,), (1,)]}`, and a sum in both at
    once, `{"sum": [(0, 1)]}`. `"any"` stands for all monoids, `"own"` for that of its reduction.
    May be a function of the number of operands."""
    flops: float | Flops = 1
    """The operations of one sub-problem."""
    dtypes: Dtypes = like_first
    """Returns the dtypes of the results, from those of the operands and the attributes. A kernel
    must return these."""
    conversion: Conversion = separate
    """Returns the dtype that each operand is converted to before the operator is applied."""
    accumulates: Accumulates = ""
    """Whether floats of less than 32 bits are converted to float32 for the kernel, and its results
    rounded once: `"always"`, or only for arrays of `"numpy"`, where other libraries accumulate in
    float32 themselves."""
    count: Count | None = None
    """Returns the operations of a box, if they are not the same for every sub-problem."""
    attributes: Declared = ()
    """The attributes of an application, with their kinds: `{"factor": float}`, or only their names;
    None for any. Those that are numbers in a line of text need not be listed."""
    workspace: float | Workspace = 1.0
    """The memory that the kernel needs beside its operands and results, at most: a multiple of the
    largest of them, or a function of the box that returns a number of elements. Runs in bounded
    memory rely on it; those of Weft's operators were measured."""
    rewrites: Sequence[Rewrite] = ()
    """Other ways to compute it: a search tries them, once they have been checked."""

    def __post_init__(self) -> None:
        freeze(self, attributes=declared(self.name, self.notation, self.attributes))
        if self.accumulates and self.kernel is not None:
            freeze(self, kernel=accumulating(self.kernel, self.dtypes, self.accumulates))

    def drawing(self, *shapes: Point, cell: Cell | None = None, **attributes: Any) -> Drawing:
        """Draw an application to operands of those shapes, or of small ones: see `Signature`."""
        return draw_operator(self, shapes, attributes, cell)

    def sign(self, shapes: Sequence[Point], attributes: Attributes | None = None) -> Signature:
        """Return the signature of an application to operands of those shapes."""
        given = attributes or {}
        try:
            self.check(given)
            with self._checked(given):
                if isinstance(self.notation, str):
                    known = names_of(self.notation)[1]
                    numbers = {name: n for name, n in given.items() if name in known}
                    return Signature.of(self.notation, shapes, numbers=numbers)
                return self.notation(shapes, given)
        except WeftError as error:
            listed = ", ".join(map(str, map(list, shapes)))
            error.add_note(f"while applying {clip(self.name, 80)} to {clip(listed, 400)}")
            raise

    def result_dtypes(self, operand_dtypes: Sequence[str], attributes: Attributes) -> Sequence[str]:
        """Return the dtypes of the results; a single one is that of all results.

        >>> Operator("halve", "n -> n").result_dtypes(["int8"], {})
        ['int8']
        """
        with self._checked(attributes):
            return self.dtypes(operand_dtypes, attributes)

    @contextmanager
    def _checked(self, attributes: Attributes) -> Iterator[None]:
        """Turn any error that the operator's functions raise into a `WeftError`."""
        try:
            yield
        except KeyError as error:
            raise WeftError(f"{clip(self.name, 80)} needs the attribute {error}") from None
        except WeftError:
            raise
        except Exception as error:
            listed = ", ".join(f"{key}={short_repr(value)}" for key, value in attributes.items())
            given = clip(listed, 120) or "these operands"
            reason = str(error) or type(error).__name__
            raise WeftError(f"{clip(self.name, 80)} cannot have {given}: {reason}") from None

    def check(self, attributes: Attributes) -> None:
        """Raise for attributes that the operator does not have, and for invalid values."""
        known = cast("Mapping[str, Kind] | None", self.attributes)
        check_attributes(self.name, self.notation, known, attributes)

    def known(self, attributes: Attributes) -> Attributes:
        """Return those of some attributes that the operator has."""
        if self.attributes is None:
            return attributes
        kept = {*cast("Mapping[str, Kind]", self.attributes), RULE_ATTRIBUTE}
        return FrozenMap((name, value) for name, value in attributes.items() if name in kept)

    def groups(
        self,
        monoid: str,
        signature: Signature,
        dtypes: Sequence[str] = (),
        result_dtypes: Sequence[str] = (),
    ) -> list[Group]:
        """Return the groups of operands that may be partial by a monoid; the results are then, too.

        With the dtypes of operands and results, groups are left out in which parts of an integer
        or a boolean would be combined in another dtype, where they wrap around differently.

        >>> add = Operator("add", "n, n -> n", keeps={"sum": [(0, 1)]})
        >>> line = Signature.of("n, n -> n", [(8,), (8,)])
        >>> add.groups("sum", line), add.groups("sum", line, ["uint8", "uint8"], ["int64"])
        ([(0, 1)], [])
        """
        own, count = set(signature.notation.reduced.values()), len(signature.notation.operands)
        keeps = self.keeps(count) if callable(self.keeps) else self.keeps
        groups = [*keeps.get(monoid, ()), *keeps.get(ANY, ())]
        if own == {monoid}:
            groups += keeps.get(OWN, ())
        fitting = [group for group in groups if group is ... or max(group) < count]
        if monoid in ORDERED or not dtypes:
            return fitting
        return [
            group
            for group in fitting
            if all(
                dtype.startswith(INEXACT) or {dtype}.issuperset(result_dtypes)
                for dtype in (dtypes if group is ... else [dtypes[n] for n in group])
            )
        ]

    def count_flops(
        self, signature: Signature, box: ZRange, attributes: Attributes | None = None
    ) -> int:
        """Return the operations of a box.

        >>> matmul = Operator("matmul", "m k, k n -> m n  sum: k", flops=2)
        >>> line = matmul.sign([(8, 16), (16, 4)])
        >>> matmul.count_flops(line, line.space)
        1024
        """
        if self.count is not None:
            return self.count(signature, box, attributes or {})
        each = self.flops(signature, attributes or {}) if callable(self.flops) else self.flops
        return round(each * prod(box.shape))

    def workspace_bytes(self, block: Block, itemsize: int) -> int:
        """Return the bytes that the kernel needs for a box, beside operands and results.

        >>> relu = Operator("relu", "m n -> m n")
        >>> line = relu.sign([(8, 4)])
        >>> relu.workspace_bytes(Block(None, line, {}, line.space), 4)
        128
        """
        sizes = [box.size for box in (*block.operands, *block.results)]
        if callable(self.workspace):
            elements: float = self.workspace(block)
        else:
            elements = self.workspace * max(sizes, default=0)
        # Elements of less than 4 bytes have indices and float32 sums beside them that are not.
        widened = 4 * sum(sizes) if self.accumulates and itemsize < 4 else 0
        return round(elements * max(4, itemsize)) + widened


class Library(dict[str, Operator]):
    """Operators by name.

    >>> library = Library()
    >>> twice = library.add(Operator("twice", "n -> n"))
    >>> library.find("twice") is twice
    True
    >>> library
    <Library of 1 operator>
    """

    def __repr__(self) -> str:
        return f"<Library of {len(self)} operator{'s' * (len(self) != 1)}>"

    def add(self, operator: Operator) -> Operator:
        """Add an operator under a new name."""
        if operator.name in self:
            raise WeftError(f"there already is an operator {operator.name}")
        self[operator.name] = operator
        return operator

    def find(self, name: str) -> Operator:
        """Return the operator of that name."""
        if name not in self:
            close = [other for other in self if other[:3] == name[:3]][:5]
            hint = f"did you mean {' or '.join(close)}?" if close else None
            raise WeftError(f"there is no operator {name}", hint=hint)
        return self[name]


OPERATORS = Library()
"""The operators that Weft ships, and those that a user adds."""


def define(
    name: str,
    notation: str | Sign,
    kernel: Kernel | None = None,
    attributes: str = "",
    *,
    structs: bool = False,
    **rules: Any,
) -> None:
    """Add an operator that Weft ships, with attributes of known kinds and fields of `Operator`.

    Unless it takes `structs`, operands with several components are refused.
    """
    named = attributes_named(attributes)
    if not structs:
        rules["dtypes"] = numbers_only(rules.get("dtypes", like_first))
    OPERATORS.add(Operator(name, notation, kernel, attributes=named, **rules))

"""The text form of meshes and shardings: the notation of the Shardy dialect.

    @cluster = <["dp"=2, "tp"=4]>
    <@cluster, [{"dp"}, {"tp":(1)2, ?}p1], replicated={"tp":(2)2}, unreduced=max{"x"}>

What follows `at` is Weft's own, and no part of Shardy's dialect: where a dimension is cut, if not
into blocks of one size. `{"x"} at [3, 7]` cuts a dimension of 10 into [0:3], [3:7] and [7:10].

Reading returns plain values; `DeviceMesh` and `ShardingSpec` check what they mean together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from operator import index
from typing import NamedTuple, NoReturn, SupportsIndex, TypeAlias, TypeVar

from weft.errors import LayoutError, ParseError, WeftError

T = TypeVar("T")

_BLANK = re.compile(r"\s*")
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*")
"""A name that needs no quotes: the bare identifiers of MLIR."""

_INTEGER = re.compile(r"[0-9]+")
_STRING = re.compile(r'"([^"\\]*)"')

MAX_DIGITS = 18
"""The most digits of an integer: sizes stay within 64 bits."""

MOST_LISTED = 4096
"""The most axes in one list, and the most dimensions of a sharding, that are read."""


class SubAxis(NamedTuple):
    """Part of an axis: the digit of `size` after `before` cells of its coordinate in mixed radix.

    An axis of 8 cells is 2 x 2 x 2; the digits are, major to minor, `"x":(1)2`, `"x":(2)2` and
    `"x":(4)2`, and `"x":(1)4` is the first two together.

    >>> print(SubAxis("x", 2, 2))
    "x":(2)2
    """

    name: str
    before: int
    size: int

    def __str__(self) -> str:
        return f'"{self.name}":({self.before}){self.size}'


Axis: TypeAlias = str | SubAxis
"""An axis of a mesh, whole or in part."""

SUB_AXIS = re.compile(r'(?:"([^"]+)"|([^":]+)):\(([0-9]{1,18})\)([0-9]{1,18})')
"""A sub-axis as text; no axis can have such a name."""


class MeshText(NamedTuple):
    """The text of a mesh, read."""

    name: str
    axes: list[tuple[str, int]]
    device_ids: list[int] | None


class DimText(NamedTuple):
    """The text of one dimension of a sharding, read."""

    axes: list[Axis]
    is_open: bool
    priority: int
    cut_points: list[int] | None = None


class ShardingText(NamedTuple):
    """The text of a sharding, read."""

    mesh: str
    dims: list[DimText]
    replicated: list[Axis]
    partial: list[tuple[Axis, str]]


def read_mesh(text: str) -> MeshText:
    """Read `@name = <["axis"=size, …]>`, with `device_ids=[…]` for another order.

    >>> read_mesh('@m = <["x"=2], device_ids=[1, 0]>')
    MeshText(name='m', axes=[('x', 2)], device_ids=[1, 0])
    """
    scan = Scanner(text)

    def axis() -> tuple[str, int]:
        name = scan.string()
        scan.expect("=")
        return name, scan.integer()

    scan.accept("sdy.mesh")
    name = _symbol(scan)
    scan.expect("=")
    scan.expect("<")
    axes = scan.items("[", "]", axis, MOST_LISTED)
    ids = None
    if scan.accept(","):
        scan.expect("device_ids")
        scan.expect("=")
        ids = scan.items("[", "]", scan.integer)
    scan.expect(">")
    scan.finish()
    return MeshText(name, axes, ids)


def read_sharding(text: str) -> ShardingText:
    """Read `<@mesh, [{…}, …], replicated={…}, unreduced={…}>`.

    >>> read_sharding('<@m, [{"x", ?}p1, {}]>').dims
    [DimText(axes=['x'], is_open=True, priority=1, cut_points=None), \
DimText(axes=[], is_open=False, priority=0, cut_points=None)]
    """
    scan = Scanner(text)
    replicated: list[Axis] = []
    partial: list[tuple[Axis, str]] = []
    scan.accept("#")
    scan.accept("sdy.sharding")
    scan.expect("<")
    mesh = _symbol(scan)
    scan.expect(",")
    dims = scan.items("[", "]", lambda: _dim(scan), MOST_LISTED)
    while scan.accept(","):
        if len(replicated) + len(partial) > MOST_LISTED:
            scan.fail(f"more than {MOST_LISTED} axes are replicated or unreduced")
        if scan.accept("replicated"):
            scan.expect("=")
            replicated += scan.items("{", "}", lambda: _axis(scan), MOST_LISTED)
        elif scan.accept("unreduced"):
            scan.expect("=")
            monoid = "sum" if scan.starts("{") else scan.name()
            axes = scan.items("{", "}", lambda: _axis(scan), MOST_LISTED)
            partial += [(axis, monoid) for axis in axes]
        else:
            scan.fail(f"expected 'replicated' or 'unreduced', found {scan.found}")
    scan.expect(">")
    scan.finish()
    return ShardingText(mesh, dims, replicated, partial)


def read_dim(text: str) -> DimText:
    """Read one dimension of a sharding: `{"axis", ?}p1`, or `{"axis"} at [3, 7]`.

    >>> read_dim('{"x":(1)2} at [5]')
    DimText(axes=[SubAxis(name='x', before=1, size=2)], is_open=False, priority=0, cut_points=[5])
    """
    scan = Scanner(text)
    dim = _dim(scan)
    scan.finish()
    return dim


def write_symbol(name: str) -> str:
    """Return the name of a mesh in text: bare if possible, otherwise in quotes.

    >>> print(write_symbol("cluster"), write_symbol("my cluster"))
    @cluster @"my cluster"
    """
    return f"@{name}" if NAME.fullmatch(name) else f'@"{name}"'


def write_axis(axis: Axis) -> str:
    """Return the text of an axis, or of part of one.

    >>> print(write_axis("x"), write_axis(SubAxis("y", 1, 2)))
    "x" "y":(1)2
    """
    return f'"{axis}"' if isinstance(axis, str) else str(axis)


def as_axes(axes: Iterable[object], what: str) -> tuple[Axis, ...]:
    """Return the axes as a tuple; a sub-axis may be given as text or as a plain tuple.

    >>> as_axes(["x", "y:(1)2", ("z", 2, 2)], "axes")
    ('x', SubAxis(name='y', before=1, size=2), SubAxis(name='z', before=2, size=2))
    """
    if isinstance(axes, str | SubAxis) or not isinstance(axes, Iterable):
        raise LayoutError(f"{what} must be a list of axes, got {axes!r}", hint=f"write [{axes!r}]")
    return tuple(map(_as_axis, axes))


def _as_axis(given: object) -> Axis:
    text = SUB_AXIS.fullmatch(given) if isinstance(given, str) else None
    if isinstance(given, str) and text is None:
        return given[1:-1] if len(given) > 2 and given[0] == given[-1] == '"' else given
    match (text[1] or text[2], int(text[3]), int(text[4])) if text else given:
        case (str(name), SupportsIndex() as before, SupportsIndex() as size):
            if index(before) >= 1 and index(size) > 1:
                return SubAxis(name, index(before), index(size))
    raise LayoutError(
        f"{given!r} is not an axis: a name, or a SubAxis of size 2 or more after 1 cell or more"
    )


def _symbol(scan: Scanner) -> str:
    scan.expect("@")
    return scan.string() if scan.starts('"') else scan.name()


def _axis(scan: Scanner) -> Axis:
    name = scan.string()
    if not scan.accept(":"):
        return name
    scan.expect("(")
    before = scan.integer()
    scan.expect(")")
    return SubAxis(name, before, scan.integer())


def _dim(scan: Scanner) -> DimText:
    entries = scan.items("{", "}", lambda: None if scan.accept("?") else _axis(scan), MOST_LISTED)
    if None in entries[:-1]:
        scan.fail("'?' must come last in a dimension")
    axes = [axis for axis in entries if axis is not None]
    priority = scan.integer() if scan.accept("p") else 0
    points = scan.items("[", "]", scan.integer) if scan.accept("at") else None
    return DimText(axes, None in entries, priority, points)


class Scanner:
    """Reads tokens of one-line notations from the left, ignoring blanks; errors give the column.

    >>> scan = Scanner('"x" = 4')
    >>> scan.string(), scan.expect("="), scan.integer(), scan.done
    ('x', None, 4, True)
    """

    __slots__ = ("_at", "text")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise WeftError(f"expected text to read, got {text!r}")
        self.text = text
        self._at = 0
        self._skip_blanks()

    @property
    def column(self) -> int:
        """The column of the next token, from 1."""
        return self._at + 1

    @property
    def done(self) -> bool:
        """True when no token is left."""
        return self._at == len(self.text)

    def accept(self, token: str) -> bool:
        """Take `token` if it is next."""
        is_next = self.starts(token)
        if is_next:
            self._advance(self._at + len(token))
        return is_next

    def expect(self, token: str) -> None:
        """Take `token`, which must be next."""
        if not self.accept(token):
            self.fail(f"expected '{token}', found {self.found}")

    def string(self) -> str:
        """Take a string in double quotes."""
        return self._take(_STRING, "a name in double quotes", group=1)

    def name(self) -> str:
        """Take a bare name: a letter or underscore, then letters, digits, '_', '$' and '.'."""
        return self._take(NAME, "a name")

    def integer(self) -> int:
        """Take a non-negative integer of at most `MAX_DIGITS` digits."""
        column = self.column
        digits = self._take(_INTEGER, "an integer")
        if len(digits) > MAX_DIGITS:
            self.fail(f"an integer of {len(digits)} digits; at most {MAX_DIGITS} are read", column)
        return int(digits)

    def items(
        self, opening: str, closing: str, item: Callable[[], T], most: int | None = None
    ) -> list[T]:
        """Take items between brackets, with commas between them, `most` of them at most.

        >>> scan = Scanner("[1, 2, 3]")
        >>> scan.items("[", "]", scan.integer)
        [1, 2, 3]
        """
        self.expect(opening)
        entries: list[T] = []
        while not self.accept(closing):
            if entries:
                self.expect(",")
            if len(entries) == most:
                self.fail(f"more than {most} entries in one list")
            entries.append(item())
        return entries

    def starts(self, token: str) -> bool:
        """Return whether `token` is next."""
        return self.text.startswith(token, self._at)

    def matches(self, pattern: re.Pattern[str]) -> bool:
        """Return whether the pattern is next."""
        return pattern.match(self.text, self._at) is not None

    def finish(self) -> None:
        """Raise if anything is left."""
        if not self.done:
            self.fail(f"expected the end, found {self.found}")

    def fail(self, message: str, column: int | None = None, hint: str | None = None) -> NoReturn:
        """Raise an error that points at `column` (by default the next token)."""
        raise ParseError(message, text=self.text, column=column or self.column, hint=hint)

    @property
    def found(self) -> str:
        """The next character, as messages show it."""
        return "the end" if self.done else f"'{self.text[self._at]}'"

    def _take(self, pattern: re.Pattern[str], what: str, group: int = 0) -> str:
        match = pattern.match(self.text, self._at)
        if match is None:
            self.fail(f"expected {what}, found {self.found}")
        self._advance(match.end())
        return match.group(group)

    def _advance(self, at: int) -> None:
        self._at = at
        self._skip_blanks()

    def _skip_blanks(self) -> None:
        blank = _BLANK.match(self.text, self._at)
        assert blank is not None  # the pattern matches the empty string
        self._at = blank.end()

"""`Size`: a size that is not known while a program is traced, such as `n`, `2*n+1` or `n//2`.

A size is a polynomial with integer coefficients in named sizes and in quotients by numbers. Sums,
differences and products are exact, and two polynomials are equal if their terms are. What depends
on the number behind a name is decided as for large sizes: `n > 5` holds, and `n == 5` does not.
While a function is traced, every such decision becomes a *condition* of its graph (`recording`),
and sizes that do not meet it are refused when they are bound. Inside an operator's shape rule there
is no need for it, since binding a graph applies all of them again.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from fractions import Fraction
from functools import reduce
from math import gcd, prod
from operator import add, and_, eq, floordiv, ge, gt, index, le, lt, mod, mul, ne, sub
from typing import Any, NamedTuple, NoReturn, SupportsIndex, TypeAlias, cast

from weft.errors import WeftError
from weft.values import Point, as_shape

LONGEST = 200
"""The longest text of a size, in characters."""

MOST_POWERS = 4
"""The highest power in the text of a size."""


class Quotient(NamedTuple):
    """A size divided by a number and rounded down."""

    numerator: Size
    denominator: int

    def __str__(self) -> str:
        text = str(self.numerator)
        return (
            f"{text}//{self.denominator}"
            if text.isidentifier()
            else (f"({text})//{self.denominator}")
        )


Factor: TypeAlias = str | Quotient
Monomial: TypeAlias = tuple[Factor, ...]
"""Factors in order, as often as they occur; none for the constant term."""
Terms: TypeAlias = Mapping[Monomial, int]


class Size:
    """A size with names in it. Arithmetic returns a `Size`, or an integer where all names cancel.

    >>> n = Size.parse("n")
    >>> (n + 1) * 2 - n, n - n, (4 * n + 2) // 4, (6 * n) // 3
    (n+2, 0, n, 2*n)
    >>> n == Size.parse("m"), 2 * n == n + n, n > 5, (n + 1) // 2
    (False, True, True, (n+1)//2)
    """

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: Iterable[tuple[Monomial, int]]) -> None:
        self.terms: tuple[tuple[Monomial, int], ...] = tuple(
            sorted(terms, key=lambda term: (-len(term[0]), tuple(map(str, term[0]))))
        )
        self._hash = hash(self.terms)

    @classmethod
    def parse(cls, text: str) -> Any:
        """Read a size from its text; a number is returned as an integer.

        >>> Size.parse("2*n+1"), Size.parse("8")
        (2*n+1, 8)
        >>> Size.parse("n.real")
        Traceback (most recent call last):
        weft.errors.WeftError: invalid size 'n.real'
        hint: names, integers, +, -, *, // and % make a size: 2*n+1
        """
        try:
            if len(text) > LONGEST:
                raise SyntaxError
            return _read(ast.parse(text.strip(), mode="eval").body)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise WeftError(
                f"invalid size {text[:60]!r}",
                hint="names, integers, +, -, *, // and % make a size: 2*n+1",
            ) from None

    @property
    def names(self) -> tuple[str, ...]:
        """The names in it, each once and in order."""
        found = set[str]()
        for monomial, _ in self.terms:
            for factor in monomial:
                found.update((factor,) if isinstance(factor, str) else factor.numerator.names)
        return tuple(sorted(found))

    def bind(self, sizes: Mapping[str, int]) -> Any:
        """Return the size with numbers for some of its names.

        >>> Size.parse("2*n+m//2").bind({"n": 3}), Size.parse("2*n+m//2").bind({"n": 3, "m": 5})
        (m//2+6, 8)
        """
        total: Any = 0
        for monomial, coefficient in self.terms:
            product: Any = coefficient
            for factor in monomial:
                if isinstance(factor, str):
                    product *= sizes.get(factor, _name(factor))
                else:
                    product *= bind(factor.numerator, sizes) // factor.denominator
            total += product
        return total

    def __add__(self, other: Any) -> Any:
        theirs = _terms(other)
        return NotImplemented if theirs is None else _made([*self.terms, *theirs])

    def __mul__(self, other: Any) -> Any:
        theirs = _terms(other)
        if theirs is None:
            return NotImplemented
        return _made(
            (tuple(sorted(one + two, key=str)), a * b) for one, a in self.terms for two, b in theirs
        )

    def __sub__(self, other: Any) -> Any:
        return self + -1 * other if isinstance(other, int | Size) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __neg__(self) -> Any:
        return self * -1

    __radd__, __rmul__ = __add__, __mul__

    def __floordiv__(self, other: Any) -> Any:
        if isinstance(other, Size):
            exact = self._exact(other)
            return self._unknown(f"{self} // {other}", other) if exact is None else exact
        if not isinstance(other, int) or isinstance(other, bool):
            return NotImplemented
        if other == 0:
            raise ZeroDivisionError(f"{self} // 0")
        if other < 0:
            return -self // -other
        whole = _made((monomial, a // other) for monomial, a in self.terms)
        rest = _made((monomial, a % other) for monomial, a in self.terms)
        if isinstance(rest, int):
            return whole
        nested = [f for monomial, _ in rest.terms for f in monomial if isinstance(f, Quotient)]
        if len(rest.terms) == 1 and len(nested) == 1 and rest.terms == (((nested[0],), 1),):
            return whole + nested[0].numerator // (nested[0].denominator * other)
        return whole + Size([((Quotient(rest, other),), 1)])

    def __rfloordiv__(self, other: Any) -> Any:
        return self._unknown(f"{other} // {self}")

    def __mod__(self, other: Any) -> Any:
        if isinstance(other, Size) and self._exact(other) is None:
            return self._unknown(f"{self} % {other}", other)
        return self - other * (self // other)

    def __rmod__(self, other: Any) -> Any:
        return self._unknown(f"{other} % {self}")

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def _exact(self, divisor: Size) -> Any:
        """Return the quotient by a size that divides this one; None if it does not.

        >>> n, m = Size.parse("n"), Size.parse("m")
        >>> (4 * n * m + 2 * n) // (2 * n), (n * m - m) // (n - 1)
        (2*m+1, m)
        """
        rest: Any = self
        quotient: Any = 0
        ((factors, by), *_) = divisor.terms
        while isinstance(rest, Size) or rest:
            ((lead, a), *_) = rest.terms if isinstance(rest, Size) else [((), rest)]
            left = list(lead)
            for factor in factors:
                if factor not in left:
                    return None
                left.remove(factor)
            if a % by:
                return None
            part = _made([(tuple(left), a // by)])
            quotient, rest = quotient + part, rest - part * divisor
        return quotient

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Size) and self._hash == other._hash and self.terms == other.terms:
            return True
        if isinstance(other, int | Size):
            _record(self, "!=", other)
        return False

    def __hash__(self) -> int:
        return self._hash

    def __bool__(self) -> bool:
        return self != 0

    def __lt__(self, other: Any) -> bool:
        return self._compared(other, "<", ">=")

    def __le__(self, other: Any) -> bool:
        return self._compared(other, "<=", ">")

    def __gt__(self, other: Any) -> bool:
        return self._compared(other, ">", "<=")

    def __ge__(self, other: Any) -> bool:
        return self._compared(other, ">=", "<")

    def _compared(self, other: Any, relation: str, opposite: str) -> bool:
        if not isinstance(other, int | Size):
            raise TypeError(f"a size is compared with a {type(other).__name__}")
        difference: Any = self - other
        if isinstance(difference, int):
            return bool(_RELATIONS[relation](difference, 0))
        answers = {bool(_RELATIONS[relation](end, 0)) for end in _limits(difference)}
        if len(answers) == 1:
            return answers.pop()
        sign = _sign(difference)
        if sign is None:
            self._unknown(f"{self} {relation} {other}", other)
        result = bool(_RELATIONS[relation](sign, 0))
        _record(self, relation if result else opposite, other)
        return result

    def __index__(self) -> int:
        raise self._error(f"the size {self} has no number yet")

    __int__ = __float__ = __index__

    def _unknown(self, what: str, other: Any = 0) -> NoReturn:
        names = " and ".join(sorted(names_in((self, other))))
        raise self._error(f"{what} is not known while {names} may be any number", other)

    def _error(self, message: str, other: Any = 0) -> WeftError:
        names = ", ".join(f"{name}=…" for name in sorted(names_in((self, other))))
        return WeftError(
            message, hint=f"trace with numbers, or bind them first: graph.bind({names})"
        )

    def __str__(self) -> str:
        text = ""
        for monomial, a in self.terms:
            factors = "*".join(map(str, monomial))
            if "//" in factors and (a != 1 or len(monomial) > 1):
                factors = "*".join(f if isinstance(f, str) else f"({f})" for f in monomial)
            number = "" if abs(a) == 1 and factors else f"{abs(a)}{'*' if factors else ''}"
            text += f"{'-' if a < 0 else '+' if text else ''}{number}{factors}"
        return text

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        if "+" not in spec:
            return str(self)
        return f"+({self})" if len(self.terms) > 1 or self.terms[0][1] < 0 else f"+{self}"


Extent: TypeAlias = int | Size
"""A size of a dimension: a number, or one that is not known yet."""

_RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge,
}  # fmt: skip
_OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.FloorDiv: floordiv, ast.Mod: mod,
}  # fmt: skip


def _name(name: str) -> Size:
    return Size([((name,), 1)])


def _terms(value: Any) -> Iterable[tuple[Monomial, int]] | None:
    if isinstance(value, Size):
        return value.terms
    return [((), index(value))] if isinstance(value, int) else None


def _made(terms: Iterable[tuple[Monomial, int]]) -> Any:
    """Return the sum of terms: an integer if no name is left."""
    total: dict[Monomial, int] = {}
    for monomial, a in terms:
        total[monomial] = total.get(monomial, 0) + a
    kept = [(monomial, a) for monomial, a in total.items() if a]
    if all(not monomial for monomial, _ in kept):
        return sum(a for _, a in kept)
    return Size(kept)


def _read(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.Name(id=name):
            return _name(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_read(operand)
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))):
            if not 0 <= power <= MOST_POWERS:
                raise SyntaxError
            return prod([_read(left)] * power)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            return _OPERATIONS[type(op)](_read(left), _read(right))
    raise SyntaxError


def _sign(size: Size) -> int | None:
    """Return the sign that a size has for all large sizes of its names; None if they disagree.

    A term grows faster than those that divide it, and a quotient as fast as the division.

    >>> _sign(Size.parse("n-100")), _sign(Size.parse("n*n-7*n")), _sign(Size.parse("n-m"))
    (1, 1, None)
    >>> _sign(Size.parse("n//2-n")), _sign(Size.parse("n-2*(n//2)"))
    (-1, None)
    """
    growth = {m: a for m, a in _growth(size).items() if a and m}
    signs = {
        1 if a > 0 else -1
        for monomial, a in growth.items()
        if not any(other != monomial and _divides(monomial, other) for other in growth)
    }
    return signs.pop() if len(signs) == 1 else None


def _limits(size: Size) -> tuple[Fraction, ...]:
    """Return the limits of a size that is bounded, such as a remainder; none if it is not.

    >>> [str(end) for end in _limits(Size.parse("n%4"))], _limits(Size.parse("n-4"))
    (['0', '3'], ())
    """
    growth, slack = _growth(size), _slack(size)
    if slack is None or any(a for monomial, a in growth.items() if monomial):
        return ()
    centre = growth.get((), Fraction(0))
    return centre + slack[0], centre + slack[1]


def _slack(size: Size) -> tuple[Fraction, Fraction] | None:
    """Return the limits of the difference to `_growth`; None for products of quotients."""
    low = high = Fraction(0)
    for monomial, a in size.terms:
        if not any(isinstance(factor, Quotient) for factor in monomial):
            continue
        inner = _slack(monomial[0].numerator) if isinstance(monomial[0], Quotient) else None
        if inner is None or len(monomial) > 1:
            return None
        by = monomial[0].denominator  # type: ignore[union-attr]
        ends = [a * (inner[0] - (by - 1)) / by, a * inner[1] / by]
        low, high = low + min(ends), high + max(ends)
    return low, high


def _growth(size: Size) -> dict[Monomial, Fraction]:
    """Return a polynomial that differs from the size by a bounded amount in each quotient."""
    total: dict[Monomial, Fraction] = {}
    for monomial, a in size.terms:
        product: dict[Monomial, Fraction] = {(): Fraction(a)}
        for factor in monomial:
            one: dict[Monomial, Fraction]
            if isinstance(factor, str):
                one = {(factor,): Fraction(1)}
            else:
                numerator = _growth(factor.numerator)
                one = {m: b / factor.denominator for m, b in numerator.items()}
            product = reduce(
                _summed,
                [
                    {tuple(sorted(m + k, key=str)): b * c}
                    for m, b in product.items()
                    for k, c in one.items()
                ],
            )
        total = _summed(total, product)
    return total


def _summed(
    one: dict[Monomial, Fraction], two: dict[Monomial, Fraction]
) -> dict[Monomial, Fraction]:
    return {m: one.get(m, Fraction(0)) + two.get(m, Fraction(0)) for m in one | two}


def _divides(one: Monomial, other: Monomial) -> bool:
    return all(one.count(factor) <= other.count(factor) for factor in one)


# -- conditions -----------------------------------------------------------------------------------

_recorded: ContextVar[dict[str, None] | None] = ContextVar("recorded", default=None)


class recording:  # noqa: N801 - used like a function, and faster than one that yields
    """Record what is decided about sizes, in order; with None it is not recorded.

    >>> with recording(found := {}):
    ...     wide = Size.parse("n") > 5
    >>> list(found)
    ['n > 5']
    """

    __slots__ = ("_into", "_token")

    def __init__(self, into: dict[str, None] | None) -> None:
        self._into = into

    def __enter__(self) -> None:
        self._token = _recorded.set(self._into)

    def __exit__(self, *_: object) -> None:
        _recorded.reset(self._token)


def _record(left: Size, relation: str, right: Extent) -> None:
    into = _recorded.get()
    if into is not None and not _holds_always(left - right, relation):
        into[_condition(left - right, relation)] = None


def condition(left: Extent, relation: str, right: Extent) -> str:
    """Return the text of a relation between sizes; none if it always holds.

    >>> n = Size.parse("n")
    >>> condition(n - 1, ">=", 0), condition(n + 1, ">", 0)
    ('n >= 1', '')
    """
    difference: Any = left - right
    if _holds_always(difference, relation):
        return ""
    if not isinstance(difference, Size):
        raise WeftError(f"{left} {relation} {right} does not hold")
    return _condition(difference, relation)


def _condition(difference: Any, relation: str) -> str:
    """Return the relation of a difference to zero as text, with the constant on the right.

    >>> _condition(Size.parse("1-n"), "<=")
    'n >= 1'
    """
    constant = dict(difference.terms).get((), 0)
    left = difference - constant
    if left.terms[0][1] > 0:
        return f"{left} {relation} {-constant}"
    return f"{-left} {relation.translate(str.maketrans('<>', '><'))} {constant}"


def _holds_always(difference: Any, relation: str) -> bool:
    """Return whether a difference of sizes has a relation to zero whatever the names stand for."""
    if isinstance(difference, int):
        return bool(_RELATIONS[relation](difference, 0))
    if any(isinstance(factor, Quotient) for m, _ in difference.terms for factor in m):
        return False
    signs = {1 if a > 0 else -1 for _, a in difference.terms}
    if len(signs) > 1:
        return False
    (sign,) = signs
    strict = any(not monomial for monomial, _ in difference.terms)
    return bool(_RELATIONS[relation](sign, 0)) and (strict or relation in (">=", "<="))


_CONDITION = re.compile(r"(.+?) (==|!=|<=|>=|<|>) (.+)")


def check_condition(text: str, sizes: Mapping[str, int] | None = None) -> str:
    """Return a condition with numbers for some names, or "" if it holds; raise if it does not.

    >>> check_condition("n > m", {"m": 3}), check_condition("n > 5", {"n": 6})
    ('n > 3', '')
    >>> check_condition("n > 5", {"n": 2})
    Traceback (most recent call last):
    weft.errors.WeftError: n=2 does not meet the condition n > 5 of the trace
    hint: the function decided something by it: trace again with n=2
    """
    read = _CONDITION.fullmatch(text)
    if read is None:
        raise WeftError(f"invalid condition {text[:60]!r}", hint="a condition is: n > 5")
    left, relation, right = Size.parse(read[1]), read[2], Size.parse(read[3])
    names = {n for side in (left, right) if isinstance(side, Size) for n in side.names}
    with recording(None):
        left, right = bind(left, sizes or {}), bind(right, sizes or {})
    if isinstance(left - right, Size):
        return _condition(left - right, relation)
    if not _RELATIONS[relation](left, right):
        given = ", ".join(f"{n}={s}" for n, s in (sizes or {}).items() if n in names)
        raise WeftError(
            f"{given or 'a size'} does not meet the condition {text} of the trace",
            hint=f"the function decided something by it: trace again with {given}",
        )
    return ""


# -- sizes and numbers alike ----------------------------------------------------------------------


def bind(value: Any, sizes: Mapping[str, int]) -> Any:
    """Return a value, or a tuple of them, with numbers for names of sizes.

    >>> bind((Size.parse("n"), 4, ("x", Size.parse("2*n"))), {"n": 3})
    (3, 4, ('x', 6))
    """
    if isinstance(value, Size):
        return value.bind(sizes)
    return tuple(bind(each, sizes) for each in value) if type(value) is tuple else value


def names_in(value: Any) -> set[str]:
    """Return the names of the sizes in a value, or in a tuple of them.

    >>> sorted(names_in((Size.parse("n*m"), 4)))
    ['m', 'n']
    """
    if isinstance(value, Size):
        return set(value.names)
    return set().union(*map(names_in, value)) if isinstance(value, tuple | list) else set()


_PLAIN = frozenset([int])


def as_sizes(values: Iterable[SupportsIndex | str], check: Callable[..., Any] = as_shape) -> Point:
    """Return the sizes of an array: integers that are not negative, sizes, and text of sizes.

    The integers are checked by `check`.

    >>> as_sizes(("n", 4)), as_sizes([4, 0])
    ((n, 4), (4, 0))
    """
    is_plain = isinstance(values, tuple) and {*map(type, values)} <= _PLAIN
    if not is_plain and isinstance(values, Iterable) and not isinstance(values, str):
        given: Any = [Size.parse(n) if isinstance(n, str) else n for n in values]
        if any(isinstance(size, Size) for size in given):
            numbers = iter(check([size for size in given if not isinstance(size, Size)]))
            sizes: Any = (each if isinstance(each, Size) else next(numbers) for each in given)
            return tuple(sizes)
        values = given
    return cast("Point", check(values))


def common_divisor(one: Extent, other: Extent) -> Any:
    """Return the greatest common divisor, as far as it is known.

    >>> n = Size.parse("n")
    >>> common_divisor(12, 8), common_divisor(6 * n + 12, 4), common_divisor(4 * n - 4, n - 1)
    (4, 2, n-1)
    """
    if isinstance(one, int) and isinstance(other, int):
        return gcd(one, other)
    for divisor, whole in ((one, other), (other, one)):
        both = isinstance(divisor, Size) and isinstance(whole, Size)
        if both and whole._exact(divisor) is not None:  # type: ignore[union-attr,arg-type]
            return divisor
    terms = [*(_terms(one) or ()), *(_terms(other) or ())]
    shared = reduce(and_, (Counter(monomial) for monomial, _ in terms))
    factors = tuple(sorted(shared.elements(), key=str))
    return _made([(factors, gcd(*(a for _, a in terms)))])


def magnitude(size: Extent) -> int:
    """Return a number by which sizes are ordered: that of a size with large numbers for its names.

    >>> magnitude(Size.parse("4*n")) > magnitude(16)
    True
    """
    return int(size.bind(dict.fromkeys(size.names, 1 << 20))) if isinstance(size, Size) else size

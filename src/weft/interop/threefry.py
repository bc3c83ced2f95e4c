"""Recognise Threefry-2x32 in a program, so that a loop of words becomes one operator.

JAX lowers its generator to a function with a loop, of which propagation knows only that arrays go
round in it. The function is executed here on expressions instead of numbers: it is Threefry if it
makes the same expressions as `weft.lang.operators.random.threefry2x32` does. That proves it for all
words, whatever the loop looks like.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from weft.lang.operators.random import INTEGERS, MASK, threefry2x32

if TYPE_CHECKING:
    from weft.interop.stablehlo import Function, Operation, Region

MOST_TURNS = 64
"""The longest loop that is followed."""

Key: TypeAlias = tuple[Any, ...]


class Word:
    """A word of 32 bits as an expression; equal expressions are the same object.

    Sums and exclusive ors do not depend on the order of their terms.

    >>> words = {}
    >>> x, y = Word.of(words, "x"), Word.of(words, "y")
    >>> (x + y + 3 is 1 + y + (x + 2), x << 1 is x << 1, x ^ y ^ x is x | y)
    (True, True, False)
    """

    __slots__ = ("key", "words")

    def __init__(self, words: dict[Key, Word], key: Key) -> None:
        self.words, self.key = words, key

    @classmethod
    def of(cls, words: dict[Key, Word], *key: Any) -> Word:
        """Return the word with this key, the same for equal keys."""
        return words.setdefault(key, cls(words, key))

    def _merged(self, name: str, other: Any, unit: Callable[[int, int], int]) -> Word:
        """Return a sum of terms, flattened, with one constant."""
        terms, constant = list[Word](), 0
        for each in (self, other):
            if isinstance(each, int):
                constant = unit(constant, each) & MASK
            elif each.key[0] == name:
                terms += each.key[1]
                constant = unit(constant, each.key[2]) & MASK
            else:
                terms.append(each)
        return Word.of(self.words, name, tuple(sorted(terms, key=id)), constant)

    def __add__(self, other: Any) -> Word:
        return self._merged("add", other, int.__add__)

    def __xor__(self, other: Any) -> Word:
        return self._merged("xor", other, int.__xor__)

    def __or__(self, other: Any) -> Word:
        return Word.of(self.words, "or", frozenset((self, other)))

    def __and__(self, mask: Any) -> Word:
        return self if mask == MASK else Word.of(self.words, "and", frozenset((self, mask)))

    def __lshift__(self, by: Any) -> Word:
        return Word.of(self.words, "shift_left", self, by)

    def __rshift__(self, by: Any) -> Word:
        return Word.of(self.words, "shift_right_logical", self, by)

    __radd__, __rxor__, __ror__ = __add__, __xor__, __or__


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: (a + b) & MASK,
    "subtract": lambda a, b: (a - b) & MASK,
    "xor": lambda a, b: a ^ b,
    "or": lambda a, b: a | b,
    "shift_left": lambda a, b: (a << b) & MASK,
    "shift_right_logical": lambda a, b: a >> b,
}
_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "LT": int.__lt__, "LE": int.__le__, "GT": int.__gt__,
    "GE": int.__ge__, "EQ": int.__eq__, "NE": int.__ne__,
}  # fmt: skip


def is_threefry(function: Function, functions: Mapping[str, Function]) -> bool:
    """Return whether a function is Threefry: of two words of a key, and two of a counter.

    Those of the key are scalars. Arguments that are not words, such as sizes, are not used.
    """
    words = [value for value in function.arguments if value.dtype == "uint32"]
    if len(words) != 4:
        return False
    key, counter = [value.shape for value in words[:2]], [value.shape for value in words[2:]]
    if key != [(), ()] or counter[0] != counter[1] or len(function.returned) != 2:
        return False
    known: dict[Key, Word] = {}
    k0, k1, x0, x1 = (Word.of(known, name) for name in ("k0", "k1", "x0", "x1"))
    given = dict(zip((value.name for value in words), (k0, k1, x0, x1)))
    wanted = threefry2x32(INTEGERS, (k0, k1), x0, x1)  # type: ignore[arg-type]
    try:
        found = _Words(functions).run(function, given)
    except (KeyError, IndexError, TypeError, ValueError, NotImplementedError):
        return False
    return all(one is two for one, two in zip(found, wanted, strict=True))


class _Words:
    """Executes functions on words, numbers and rows of numbers.

    What is none of these is None, which no operation on words takes.
    """

    def __init__(self, functions: Mapping[str, Function]) -> None:
        self.functions = functions

    def run(self, code: Function | Region, known: Mapping[str, Any]) -> list[Any]:
        values = dict(known)
        for operation in code.body:
            given = [values.get(name) for name in operation.operands]
            made = self._results(operation, given, values)
            values.update(zip((value.name for value in operation.results), made))
        return [values.get(name) for name in code.returned]

    def _results(
        self, operation: Operation, given: list[Any], values: Mapping[str, Any]
    ) -> Sequence[Any]:
        if operation.callee:
            function = self.functions[operation.callee]
            return self.run(function, dict(zip((v.name for v in function.arguments), given)))
        if operation.name == "while":
            return self._loop(operation, given, values)
        return [self._value(operation, given) for _ in operation.results[:1]]

    def _loop(
        self, operation: Operation, carried: list[Any], values: Mapping[str, Any]
    ) -> Sequence[Any]:
        condition, body = operation.regions
        for _ in range(MOST_TURNS):
            names = (value.name for value in condition.arguments)
            (goes_on,) = self.run(condition, {**values, **dict(zip(names, carried))})
            if goes_on is False:
                return carried
            if goes_on is not True:
                raise NotImplementedError
            names = (value.name for value in body.arguments)
            carried = self.run(body, {**values, **dict(zip(names, carried))})
        raise NotImplementedError

    def _value(self, operation: Operation, given: list[Any]) -> Any:
        (result,), attributes = operation.results, operation.attributes
        first, made = given[0] if given else None, None
        match operation.name:
            case "constant":
                made = attributes.get("value")
            case "broadcast_in_dim" | "dynamic_broadcast_in_dim":
                made = first if operation.operand_shapes[0] == () else None
            case "convert" if isinstance(first, int) and "int" in result.dtype:
                made = first & MASK if result.dtype == "uint32" else first
            case "slice" if isinstance(first, tuple) and len(result.shape) == 1:
                limits = ("start_indices", "limit_indices", "strides")
                made = first[slice(*(attributes[key][0] for key in limits))]
            case "reshape" if isinstance(first, tuple) and result.shape == ():
                made = first[0]
            case "compare":
                made = _COMPARED[attributes["comparison_direction"]](*given)
            case name if name in _OPERATIONS and result.dtype in ("uint32", "int32"):
                is_word = any(isinstance(each, Word) for each in given)
                if (is_word and result.dtype == "int32") or any(each is None for each in given):
                    raise NotImplementedError
                made = _OPERATIONS[name](*given)
        return made

"""The table: for an operator of ATen the function that says it in operators of Weft.

A function is called as `function(to, *args, **kwargs)` with the arguments of the node, tensors as
symbols; what it gives back is a symbol, or a tuple of them, None for a result that is not computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from weft.errors import WeftError
from weft.lang import Symbol, Tracer, Value
from weft.values import Point


class To(NamedTuple):
    """Where a node goes: the program that is written, and what its results are in torch."""

    tracer: Tracer
    results: tuple[Value | None, ...]
    """None for what is no tensor."""
    common: str
    """The dtype that ATen brings the operands to, where it computes in one."""

    @property
    def shape(self) -> Point:
        """The shape of the first result."""
        return self._first.shape

    @property
    def dtype(self) -> str:
        """The dtype of the first result."""
        return self._first.dtype

    @property
    def _first(self) -> Value:
        return next(value for value in self.results if value is not None)

    def constant(self, value: Any, shape: Point = (), dtype: str = "") -> Symbol:
        """A number everywhere, or numbers row by row."""
        said = {"value": value, "dtype": dtype or self.dtype, "result_shape": shape}
        return self.tracer.apply("constant", (), said)[0]

    def numbers(self, size: int, dtype: str) -> Symbol:
        """The numbers from 0 on."""
        said = {"iota_dimension": 0, "dtype": dtype, "result_shape": (size,)}
        return self.tracer.apply("iota", (), said)[0]

    def cast(self, x: Any, dtype: str = "") -> Any:
        """A tensor, or a number, in a dtype: that of the result unless given."""
        wanted = dtype or self.dtype
        if isinstance(x, Symbol):
            return x if x.dtype == wanted else x.astype(wanted)
        return number(x, wanted)

    def choose(self, flag: Symbol, x: Any, y: Any) -> Symbol:
        """One operand or the other; a number has the dtype of the tensor beside it."""
        like = next((each.dtype for each in (x, y) if isinstance(each, Symbol)), self.dtype)
        pair = [z if isinstance(z, Symbol) else self.constant(z, (), like) for z in (x, y)]
        return self.tracer.apply("select", (flag, *pair), {})[0]


Said: TypeAlias = Callable[..., Any]

TABLE: dict[str, Said] = {}
"""By the name without the overload, such as `add`, or with it where overloads differ."""


def says(*names: str) -> Callable[[Said], Said]:
    """Enter a function under the names of operators."""

    def enter(function: Said) -> Said:
        for name in names:
            assert name not in TABLE, name
            TABLE[name] = function
        return function

    return enter


def number(x: Any, dtype: str) -> Any:
    """A number as a dtype has it: those of floats are floats."""
    if isinstance(x, bool) or dtype == "bool":
        return bool(x) if dtype == "bool" else float(x) if "float" in dtype else int(x)
    return float(x) if "float" in dtype else x


def refuse(what: str, hint: str | None = None) -> WeftError:
    """What is said of arguments that Weft has no operator for."""
    return WeftError(what, hint=hint)

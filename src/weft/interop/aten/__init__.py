"""ATen's operators in terms of Weft's, by name; nothing here needs torch.

An entry of `TABLE` is called as `function(node, *args, **kwargs)` with the arguments of the node,
tensors as symbols. It returns a symbol, or a tuple of them, with None for a result that is not
computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from weft.errors import WeftError
from weft.lang import Symbol, Tracer, Value
from weft.lang.size import Size
from weft.values import Point


class AtenNode(NamedTuple):
    """A node of an exported program: the tracer that records it, and its results in torch."""

    tracer: Tracer
    results: tuple[Value | None, ...]
    """None for a result that is not a tensor."""
    common: str
    """The dtype that ATen converts the first two operands to."""
    random_key: Callable[[], Symbol]
    """Returns a new random key for each draw of the program."""
    used: frozenset[int] = frozenset()
    """The numbers of the results that the program uses, if it has several."""

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
        """Return a constant: a number everywhere, or numbers row by row."""
        attributes = {"value": value, "dtype": dtype or self.dtype, "result_shape": shape}
        return self.tracer.apply("constant", (), attributes)[0]

    def numbers(self, size: int, dtype: str) -> Symbol:
        """Return the integers from 0 to `size`."""
        attributes = {"iota_dimension": 0, "dtype": dtype, "result_shape": (size,)}
        return self.tracer.apply("iota", (), attributes)[0]

    def cast(self, x: Any, dtype: str = "") -> Any:
        """Return a tensor, or a number, in a dtype: that of the result by default.

        A size stays one: it is a number of any dtype.
        """
        wanted = dtype or self.dtype
        if isinstance(x, Symbol):
            return x if x.dtype == wanted else x.astype(wanted)
        return x if isinstance(x, Size) else number(x, wanted)

    def choose(self, flag: Symbol, x: Any, y: Any) -> Symbol:
        """Select one operand or the other; a number takes the dtype of the tensor beside it."""
        like = next((each.dtype for each in (x, y) if isinstance(each, Symbol)), self.dtype)
        pair = [z if isinstance(z, Symbol) else self.constant(z, (), like) for z in (x, y)]
        return self.tracer.apply("select", (flag, *pair), {})[0]


Converter: TypeAlias = Callable[..., Any]

TABLE: dict[str, Converter] = {}
"""Converters by the name without the overload, such as `add`, or with it where overloads differ."""


def converts(*names: str) -> Callable[[Converter], Converter]:
    """Register a function as the converter of operators."""

    def enter(function: Converter) -> Converter:
        for name in names:
            assert name not in TABLE, name
            TABLE[name] = function
        return function

    return enter


def number(x: Any, dtype: str) -> Any:
    """Return a number as the Python type of a dtype."""
    if isinstance(x, bool) or dtype == "bool":
        return bool(x) if dtype == "bool" else float(x) if "float" in dtype else int(x)
    return float(x) if "float" in dtype else x


def unsupported(what: str, hint: str | None = None) -> WeftError:
    """Return the error for arguments that Weft has no operator for."""
    return WeftError(f"{what} is not supported", hint=hint)


from weft.interop.aten import arrays, indexing, layers, pointwise, random  # noqa: E402 - they fill the table

__all__ = ["TABLE", "AtenNode", "arrays", "indexing", "layers", "pointwise", "random"]

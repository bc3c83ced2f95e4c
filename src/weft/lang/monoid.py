"""Monoids on arrays: the identity, how two parts combine, how an array is reduced.

`Monoid` defines one of a user's own. Its elements may have several components, which are then one
value of the program with a struct for a dtype: they move, are combined and are counted together.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from functools import lru_cache, partial, reduce
from hashlib import sha256
from importlib import import_module
from math import prod
from types import CodeType, ModuleType
from typing import Any, TypeAlias

from weft.errors import WeftError
from weft.lang.dtype import (
    Component,
    accumulator,
    bounds,
    components,
    dtype_name,
    kind,
    mean_dtype,
    struct_dtype,
)
from weft.lang.kernel import along, cast, descending, is_low_precision, native
from weft.lang.struct_array import StructArray, concatenate
from weft.values import MONOIDS, Point, monoid_hint

Array = Any
Axes = tuple[int, ...]

Components: TypeAlias = Mapping[str, str | tuple[str, Point]]
"""The dtype of each component, with its shape where it has one."""

Lift: TypeAlias = Callable[[Any, Array, Array], Any]
"""Returns the components of elements: `lift(xp, x, index)`."""


def lowest(dtype: str) -> Any:
    """Return the least number of a dtype: the identity of a maximum.

    >>> lowest("int8"), lowest("float32")
    (-128, -inf)
    """
    return _extreme(dtype, lowest=True)


def highest(dtype: str) -> Any:
    """Return the greatest number of a dtype: the identity of a minimum."""
    return _extreme(dtype, lowest=False)


@dataclass(frozen=True, eq=False)
class Monoid:
    """An associative and commutative operation with an identity, defined by a user.

    `combine(xp, a, b)` combines two arrays of elements, with functions of the array library `xp`.
    With several `components` both are indexed by their names, and the result is a tuple in their
    order, or a dict. `lift(xp, x, index)` makes the elements of an array into elements of the
    monoid; `index` counts the positions along the dimensions that are aggregated. The laws are
    tried on random elements when a monoid is defined.

    >>> spread = Monoid(
    ...     "spread",
    ...     lambda xp, a, b: (xp.minimum(a["low"], b["low"]), xp.maximum(a["high"], b["high"])),
    ...     identity=(highest, lowest),
    ...     components=lambda dtype: {"low": dtype, "high": dtype},
    ...     lift=lambda xp, x, index: (x, x),
    ... )
    >>> spread.dtype("float32")
    'struct<low: float32, high: float32>'
    """

    name: str
    combine: Callable[[Any, Any, Any], Any]
    identity: Any = 0
    """The identity: a number, or a function of the dtype that returns one; for several components
    a tuple of them."""
    components: Components | Callable[[str], Components] | None = None
    """The components and their dtypes, which may follow from the dtype of what is aggregated; None
    for a single one of that dtype."""
    lift: Lift | None = None
    """Makes elements of the monoid; None where the array's elements are such already."""
    reduce: Lift | None = None
    """Makes one element of the monoid of all along the last axis of `x`, faster than by lifting
    and combining; `index` has the positions along it, in ascending order."""
    check: InitVar[bool] = True
    """Whether the laws are tried now."""

    def __post_init__(self, check: bool) -> None:
        if not self.name.isidentifier():
            raise WeftError(f"the name of a monoid must be an identifier: {self.name!r}")
        known = MONOIDS.get(self.name)
        if isinstance(known, Monoid) and known.fingerprint == self.fingerprint:
            return  # the same definition, read again in a notebook or by a worker
        own = self.name == "custom" or (check and _LARGEST.fullmatch(self.name))
        if self.name in MONOIDS or own:
            raise WeftError(f"there already is a monoid {self.name}")
        if check:
            check_laws(self)
        MONOIDS[self.name] = self

    def __repr__(self) -> str:
        return f"Monoid({self.name})"

    @property
    def fingerprint(self) -> str:
        """A text that differs between definitions; the same in all processes of one Python.

        >>> len(MONOIDS["argmax"].fingerprint)
        16
        """
        parts = [self.name, *map(_source, (self.combine, self.lift, self.reduce, self.components))]
        identity = self.identity if isinstance(self.identity, tuple) else (self.identity,)
        parts += map(_source, identity)
        return sha256("\n".join(parts).encode()).hexdigest()[:16]

    def __reduce__(self) -> tuple[Any, ...]:
        if _is_shipped(self.name):
            return (monoid_named, (self.name,))
        fields = (self.combine, self.identity, self.components, self.lift, self.reduce)
        return (_restored, (self.name, self.fingerprint, *fields))

    def dtype(self, operand: str) -> str:
        """Return the dtype of its elements, from the dtype of what is aggregated."""
        if self.components is None or components(operand):
            return operand
        given = self.components(operand) if callable(self.components) else self.components
        parts = [
            Component(name, each) if isinstance(each, str) else Component(name, *each)
            for name, each in given.items()
        ]
        for part in parts:
            kind(part.dtype)
        return struct_dtype(parts)

    def fits(self, dtype: str) -> bool:
        """Return whether it combines arrays of a dtype: with its components, if it has any."""
        own = components(self.dtype(_TRIED[0])) if self.components is not None else ()
        if [part[::2] for part in components(dtype)] != [part[::2] for part in own]:
            return False
        return _combines(self, dtype)

    def pair(self, xp: Any, one: Array, two: Array) -> Array:
        """Return two arrays of elements combined."""
        made = self.combine(xp, one, two)
        return self._elements(made, one.dtype, len(one.shape))

    def full(self, xp: Any, shape: Sequence[int], dtype: Any) -> Array:
        """Return an array of identities; `dtype` is that of the elements."""
        parts = components(dtype_name(dtype))
        if not parts:
            return xp.full(tuple(shape), _number(self.identity, dtype_name(dtype)), dtype=dtype)
        given = self.identity if isinstance(self.identity, tuple) else (self.identity,)
        values = given if len(given) == len(parts) else given * len(parts)
        made = {
            part.name: xp.full(
                (*shape, *part.shape), _number(value, part.dtype), dtype=native(xp, part.dtype)
            )
            for part, value in zip(parts, values)
        }
        return StructArray(made, len(shape))

    def aggregate(self, xp: Any, x: Array, index: Array) -> Array:
        """Return the elements along the last axis of an array combined to one.

        An array of the monoid's own elements is combined; any other is lifted first.
        """
        name, shape = dtype_name(x.dtype), tuple(x.shape)
        wanted = _own_dtype(xp, self.dtype(name))
        if not shape[-1]:
            return self.full(xp, shape[:-1], wanted)
        if self.reduce is not None and not components(name):
            made = self.reduce(xp, x, index)
            return self._elements(made, wanted, len(shape) - 1)
        if self.lift is not None and not components(name):
            lifted = self.lift(xp, x, xp.broadcast_to(index, shape))
            x = self._elements(lifted, wanted, len(shape))
        axis, size = len(shape) - 1, shape[-1]
        while size > 1:
            half = size // 2
            both = self.pair(
                xp, x[along(axis, slice(0, half))], x[along(axis, slice(half, 2 * half))]
            )
            rest = [x[along(axis, slice(2 * half, size))]] if size % 2 else []
            x, size = concatenate(xp, [both, *rest], axis) if rest else both, half + size % 2
        return x[along(axis, 0)]

    def _elements(self, made: Any, dtype: Any, ndim: int) -> Array:
        """Return what a function of the definition made as an array of elements, checked."""
        parts = components(dtype_name(dtype))
        if not parts:
            (array,) = made if isinstance(made, tuple | list) else (made,)
            found = array
        else:
            if isinstance(made, StructArray):
                made = made.components
            arrays = made.values() if isinstance(made, Mapping) else made
            if len(arrays) != len(parts):
                raise WeftError(f"{self.name} has {len(parts)} components; {len(arrays)} were made")
            found = StructArray(dict(zip((part.name for part in parts), arrays)), ndim)
        if dtype_name(found.dtype) != dtype_name(dtype):
            raise WeftError(
                f"{self.name} makes {dtype_name(found.dtype)}, and its elements are "
                f"{dtype_name(dtype)}"
            )
        return found


def monoid_named(name: str) -> Monoid | None:
    """Return the definition of a monoid; None for those that Weft computes by itself.

    >>> monoid_named("sum") is None, monoid_named("argmax").name
    (True, 'argmax')
    """
    if name not in MONOIDS and _LARGEST.fullmatch(name):
        return largest(int(name.removeprefix("largest_")))
    if name not in MONOIDS:
        raise WeftError(f"'{name}' is not a monoid", hint=monoid_hint())
    found = MONOIDS[name]
    return found if isinstance(found, Monoid) else None


def check_parts(name: str, dtype: str) -> None:
    """Raise unless an array of a dtype may lie in parts that a monoid combines.

    >>> check_parts("argmax", "float32")
    Traceback (most recent call last):
    weft.errors.WeftError: an array of float32 cannot lie in parts by argmax
    hint: the elements of argmax are struct<value: float32, index: int64>
    """
    own = monoid_named(name)
    if own is not None:
        fits, elements = own.fits(dtype), own.dtype(dtype)
        hint = f"the elements of {name} are {elements}"
        hint += ", which it does not combine" if elements == dtype else ""
    else:
        wanted = {"and": "bool int uint", "or": "bool int uint", "logsumexp": "float complex"}
        given = "struct" if components(dtype) else kind(dtype)
        kinds = wanted.get(name, "bool int uint float complex")
        fits, hint = given in kinds.split(), f"{name} combines arrays of {kinds}"
    if not fits:
        raise WeftError(f"an array of {dtype} cannot lie in parts by {name}", hint=hint)


def definitions_of(names: Iterable[str]) -> dict[str, str]:
    """Return what a file records of the monoids that are a user's: the Python and the fingerprint.

    >>> definitions_of(["sum", "argmax", "largest_3"])
    {}
    """
    found = {name: monoid_named(name) for name in sorted(set(names))}
    return {
        name: f"{sys.implementation.cache_tag} {monoid.fingerprint}"
        for name, monoid in found.items()
        if monoid is not None and not _is_shipped(name)
    }


def check_definition(name: str, recorded: str) -> None:
    """Raise unless the monoid of that name is the one that a file was written with."""
    if definitions_of([name]) == {name: recorded}:
        return
    python, here = recorded.partition(" ")[0], sys.implementation.cache_tag
    if python != here:
        raise WeftError(
            f"the monoid {name} was defined in {python}, and definitions are not comparable with "
            f"those of {here}",
            hint="write the file again with this Python",
        )
    raise WeftError(
        f"the monoid {name} is defined differently here than where the file was written",
        hint="define it as it was, or write the file again",
    )


def _is_shipped(name: str) -> bool:
    return name in _SHIPPED or _LARGEST.fullmatch(name) is not None


def _restored(name: str, fingerprint: str, *fields: Any) -> Monoid:
    """Return the monoid of this process that another process sent; define it if there is none."""
    known = MONOIDS.get(name)
    if not isinstance(known, Monoid):
        return Monoid(name, *fields)
    if known.fingerprint != fingerprint:
        raise WeftError(f"the monoid {name} is defined differently in two processes")
    return known


def _source(value: Any, home: str = "", seen: set[int] | None = None) -> str:
    """Return a text of all that a function computes with: code, constants, captures, globals.

    Globals are followed in the module of the first function; of others only the code counts.
    """
    seen = set() if seen is None else seen
    code = getattr(value, "__code__", None)
    if code is None:
        return _text_of(value, home, seen)
    if id(value) in seen:
        return "again"
    seen.add(id(value))
    home = home or value.__module__
    names, texts = _names_and_texts(code)
    known = value.__globals__ if value.__module__ == home else {}
    captures = [cell.cell_contents for cell in value.__closure__ or ()]
    given = (value.__defaults__, value.__kwdefaults__, getattr(value, "__self__", None))
    used = [known[name] for name in names if name in known]
    return "|".join([*texts, *(_source(each, home, seen) for each in (*captures, *given, *used))])


def _text_of(  # noqa: PLR0911 - one for each kind
    value: Any, home: str, seen: set[int]
) -> str:
    """Return a text of a value that is not a Python function, the same in all processes."""

    def joined(first: str, parts: Iterable[Any]) -> str:
        return "|".join([first, *(_source(each, home, seen) for each in parts)])

    if isinstance(value, partial):
        return joined("partial", (value.func, value.args, sorted(value.keywords.items())))
    if isinstance(value, tuple | list):
        return joined("items", value)
    if isinstance(value, frozenset | set):
        return "|".join(sorted(_source(each, home, seen) for each in value))
    if isinstance(value, ModuleType):
        return value.__name__
    if hasattr(value, "tobytes"):  # an array: its repr leaves elements out
        return f"{value.dtype}{value.shape}{value.tobytes().hex()}"
    name = getattr(value, "__qualname__", None)
    if name is not None:
        return f"{getattr(value, '__module__', '')}.{name}"
    kind_of: Any = type(value)
    if (callable(value) or kind_of.__repr__ is object.__repr__) and id(value) not in seen:
        seen.add(id(value))
        code = [kind_of.__call__] if callable(value) else []
        fields = sorted(getattr(value, "__dict__", {}).items())
        return joined(kind_of.__qualname__, [*code, *fields])
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _names_and_texts(code: CodeType) -> tuple[list[str], list[str]]:
    """Return the names that code and the code inside it use, and their texts."""
    names, texts = list(code.co_names), [code.co_code.hex(), *code.co_names]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = _names_and_texts(constant)
            names, texts = names + inner[0], texts + inner[1]
        else:
            texts.append(_source(constant))
    return names, texts


@lru_cache(maxsize=1024)
def _combines(monoid: Monoid, dtype: str) -> bool:
    """Return whether two elements of a dtype can be combined, by trying it."""
    try:
        xp = import_module("array_api_compat.numpy")
        neutral = monoid.full(xp, (1,), _own_dtype(xp, dtype))
        monoid.pair(xp, neutral, neutral)
    except ImportError:
        return True
    except Exception:
        return False
    return True


def _own_dtype(xp: Any, name: str) -> Any:
    return name if components(name) else native(xp, name)


def _number(value: Any, dtype: str) -> Any:
    return value(dtype) if callable(value) else value


# The laws.

_TRIED = ("float64", "int64")
"""The dtypes in which a monoid is tried: the first that it takes, or the only one of its own."""


def check_laws(monoid: Monoid) -> None:
    """Raise if the laws do not hold for random elements."""
    try:
        xp = import_module("array_api_compat.numpy")
    except ImportError:  # then nothing can be computed here either
        return
    failure: Exception | None = None
    for dtype in _TRIED:
        try:
            states = [_random_elements(xp, monoid, dtype, seed) for seed in range(3)]
            neutral = monoid.full(xp, states[0].shape, states[0].dtype)
            _check_on(xp, monoid, states, neutral)
        except WeftError:
            raise
        except Exception as error:
            failure = error
        else:
            return
    raise WeftError(f"the monoid {monoid.name} could not be tried: {failure!r}")


def _random_elements(xp: Any, monoid: Monoid, dtype: str, seed: int) -> Array:
    """Return elements of a monoid: each made of one to five numbers, of which many are equal."""
    rng, parts = xp.random.default_rng(seed), []
    for size in (1, 2, 5):
        x = xp.asarray(rng.integers(0, 8, (12, size)), dtype=native(xp, dtype))
        index = xp.arange(5 * seed, 5 * seed + size, dtype=native(xp, "int64"))
        parts.append(monoid.aggregate(xp, x, index))
    return concatenate(xp, parts, 0)


def _check_on(xp: Any, monoid: Monoid, states: Sequence[Array], neutral: Array) -> None:
    one, two, three = states
    both = monoid.pair
    for law, left, right in (
        ("identity", both(xp, neutral, one), one),
        ("identity", both(xp, one, neutral), one),
        ("associative", both(xp, both(xp, one, two), three), both(xp, one, both(xp, two, three))),
        ("commutative", both(xp, one, two), both(xp, two, one)),
    ):
        if not _agree(xp, left, right):
            what = "has another identity" if law == "identity" else f"is not {law}"
            raise WeftError(
                f"the monoid {monoid.name} {what}: {_first_difference(xp, left, right)}",
                hint="parts are combined in any order and any grouping",
            )


def _pairs(left: Array, right: Array) -> list[tuple[Array, Array]]:
    if isinstance(left, StructArray):
        return list(zip(left.components, right.components))
    return [(left, right)]


def _agree(xp: Any, left: Array, right: Array) -> bool:
    return all(
        xp.allclose(one, two, rtol=1e-3 if is_low_precision(one.dtype) else 1e-5, equal_nan=True)
        if kind(dtype_name(one.dtype)) in ("float", "complex")
        else bool(xp.all(one == two))
        for one, two in _pairs(left, right)
    )


def _first_difference(xp: Any, left: Array, right: Array) -> str:
    """Return two elements that should be equal, as text."""
    for n in range(left.shape[0]):
        here = slice(n, n + 1)
        if not _agree(xp, left[here], right[here]):
            texts = [
                ", ".join(str(part[0]) for part in row)
                for row in zip(*_pairs(left[here], right[here]))
            ]
            return f"({texts[0]}) and ({texts[1]})"
    return "elements differ"


# Those that Weft computes by itself.
@lru_cache(maxsize=256)
def identity(xp: Any, monoid: str, dtype: Any) -> Any:
    """Return the identity of a monoid for a dtype.

    >>> import numpy
    >>> identity(numpy, "max", numpy.dtype("int8")), identity(numpy, "sum", numpy.dtype("int8"))
    (-128, 0)
    """
    own = monoid_named(monoid)
    if own is not None:
        return _number(own.identity, dtype_name(dtype))
    if monoid in ("sum", "or"):
        return False if dtype == xp.bool else 0
    if monoid == "prod":
        return 1
    if monoid == "and":
        return _all_ones(xp, dtype)
    if monoid == "logsumexp":
        return -float("inf")
    if monoid in ("max", "min"):
        return _extreme(dtype_name(dtype), lowest=monoid == "max")
    raise WeftError(f"'{monoid}' has no identity")


def _all_ones(xp: Any, dtype: Any) -> Any:
    if dtype == xp.bool:
        return True
    return bounds(dtype_name(dtype))[1] if kind(dtype_name(dtype)) == "uint" else -1


def _extreme(dtype: str, lowest: bool) -> Any:
    """Return the least or the greatest number of a dtype."""
    if kind(dtype) == "bool":
        return not lowest
    if kind(dtype) in ("int", "uint"):
        return bounds(dtype)[0 if lowest else 1]
    return -float("inf") if lowest else float("inf")


@lru_cache(maxsize=256)
def combination(xp: Any, monoid: str, dtype: Any) -> Callable[[Array, Array], Array]:
    """Return the function that combines two parts.

    >>> import numpy
    >>> combination(numpy, "max", numpy.dtype("int8"))(numpy.int8(3), numpy.int8(5))
    np.int8(5)
    """
    own = monoid_named(monoid)
    if own is not None:
        return partial(own.pair, xp)
    logical = dtype == xp.bool
    names = {
        "sum": "logical_or" if logical else "add",
        "prod": "logical_and" if logical else "multiply",
        "max": "logical_or" if logical else "maximum",
        "min": "logical_and" if logical else "minimum",
        "and": "logical_and" if logical else "bitwise_and",
        "or": "logical_or" if logical else "bitwise_or",
        "logsumexp": "logaddexp",
    }
    function: Callable[[Array, Array], Array] = getattr(xp, names[monoid])
    return function


def reduction(  # noqa: PLR0911 - one for each kind
    xp: Any, monoid: str, dtype: Any
) -> Callable[[Any, Axes], Any]:
    """Return the function that reduces an array along axes by a monoid.

    Sums and products are computed in `dtype`, whatever the dtype of the array.

    >>> import numpy
    >>> int(reduction(numpy, "max", numpy.dtype("int8"))(numpy.asarray([3, 5]), (0,)))
    5
    """
    own = monoid_named(monoid)
    if own is not None:
        return partial(_aggregate, own, xp)
    logical = dtype == xp.bool
    match monoid:
        case "sum" | "prod" if not logical:
            along = getattr(xp, monoid)
            return lambda x, axes: along(x, axis=axes, dtype=dtype)
        case "max" | "min" if not logical:
            along = getattr(xp, monoid)
            return lambda x, axes: _reduce_any(xp, along, x, axes, identity(xp, monoid, dtype))
        case "and" | "min" | "prod" if logical:
            return lambda x, axes: xp.all(x, axis=axes)
        case "or" | "max" | "sum" if logical:
            return lambda x, axes: xp.any(x, axis=axes)
        case "and" | "or":
            both, empty = getattr(xp, f"bitwise_{monoid}"), identity(xp, monoid, dtype)
            return lambda x, axes: _bitwise(xp, both, x, axes, empty)
        case "logsumexp":
            return lambda x, axes: logsumexp(xp, x, axes)
    raise WeftError(f"there is no reduction by '{monoid}'")


def _aggregate(monoid: Monoid, xp: Any, x: Any, axes: Axes) -> Any:
    """Combine the elements of an array along axes."""
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    shape = [x.shape[axis] for axis in kept]
    flat = xp.reshape(xp.permute_dims(x, (*kept, *axes)), (*shape, prod(x.shape[a] for a in axes)))
    size = flat.shape[-1]
    return monoid.aggregate(xp, flat, xp.arange(size))


def _reduce_any(xp: Any, along: Callable[..., Any], x: Any, axes: Axes, empty: Any) -> Any:
    """Reduce along axes; no elements give the identity."""
    if all(x.shape[axis] for axis in axes):
        return along(x, axis=axes)
    kept = tuple(n for axis, n in enumerate(x.shape) if axis not in axes)
    return xp.full(kept, empty, dtype=x.dtype)


def _bitwise(xp: Any, both: Callable[[Any, Any], Any], x: Any, axes: Axes, empty: int) -> Any:
    for axis in sorted(axes, reverse=True):
        head = (slice(None),) * axis
        total = xp.full((*x.shape[:axis], *x.shape[axis + 1 :]), empty, dtype=x.dtype)
        for n in range(x.shape[axis]):
            total = both(total, x[(*head, n, ...)])
        x = total
    return x


def combine(xp: Any, monoid: str, parts: Sequence[Array]) -> Array:
    """Combine parts in their order; low-precision floats are rounded once.

    >>> import numpy
    >>> int(combine(numpy, "sum", [numpy.asarray(1, "float16")] * 5000))
    5000
    """
    first = parts[0]
    if isinstance(first, StructArray):
        return reduce(combination(xp, monoid, first.dtype), parts)
    if not is_low_precision(first.dtype) or monoid in ("max", "min"):
        return reduce(combination(xp, monoid, first.dtype), parts)
    wide = native(xp, "float32")
    total = reduce(combination(xp, monoid, wide), (xp.astype(part, wide) for part in parts))
    return xp.astype(total, first.dtype)


def logsumexp(xp: Any, x: Any, axes: Axes) -> Any:
    """Return the logarithm of a sum of exponentials, shifted by the largest to avoid overflow."""
    if not all(x.shape[axis] for axis in axes):
        kept = tuple(n for axis, n in enumerate(x.shape) if axis not in axes)
        return xp.full(kept, -float("inf"), dtype=x.dtype)
    top = xp.max(x, axis=axes, keepdims=True)
    top = xp.where(xp.isfinite(top), top, xp.zeros_like(top))
    total = xp.sum(xp.exp(x - top), axis=axes, keepdims=True)
    some = xp.log(xp.where(total == 0, xp.ones_like(total), total)) + top
    nothing = xp.full_like(total, -float("inf"))
    return xp.squeeze(xp.where(total == 0, nothing, some), axis=axes)


def identities(xp: Any, monoid: str, like: Array) -> Array:
    """Return an array of a monoid's identity, of the shape and the dtype of another.

    >>> import numpy
    >>> identities(numpy, "prod", numpy.zeros(2, "float32"))
    array([1., 1.], dtype=float32)
    """
    own = monoid_named(monoid)
    if own is not None:
        return own.full(xp, like.shape, like.dtype)
    return xp.full(like.shape, identity(xp, monoid, like.dtype), dtype=like.dtype)


# Those that Weft defines in the way of a user's.


def _best(sign: int) -> tuple[Callable[..., Any], Lift]:
    """Return how the first largest (1) or the first smallest (-1) elements are found."""

    def combine(xp: Any, a: Any, b: Any) -> Any:
        x, y, i, j = a["value"], b["value"], a["index"], b["index"]
        no, nor = _is_nan(x), _is_nan(y)  # NaN comes first, as in NumPy
        more = (y > x if sign > 0 else y < x) | (nor & ~no)
        same = (x == y) | (no & nor)
        take = more | (same & (j < i))
        return xp.where(take, y, x), xp.where(take, j, i)

    def reduce(xp: Any, x: Any, index: Any) -> Any:
        place = (xp.argmax if sign > 0 else xp.argmin)(x, axis=-1, keepdims=True)
        value = xp.take_along_axis(x, place, axis=-1)
        at = xp.take(index, xp.reshape(place, (-1,)), axis=0)
        return xp.squeeze(value, axis=-1), xp.reshape(at, x.shape[:-1])

    return combine, reduce


def _is_nan(x: Any) -> Any:
    """Return where elements are NaN, which integers never are."""
    return x != x  # noqa: PLR0124


def _moments(xp: Any, a: Any, b: Any) -> Any:
    """Combine counts, means and sums of squared differences, as Chan, Golub and LeVeque do."""
    mean, count = a["mean"], a["count"] + b["count"]
    n, m = (xp.astype(each["count"], mean.dtype) for each in (a, b))
    total = xp.where(count == 0, xp.ones_like(n), n + m)
    apart = b["mean"] - mean
    squares = a["squares"] + b["squares"] + apart * apart * (n * m / total)
    return count, mean + apart * (m / total), squares


def _moments_of(xp: Any, x: Any, index: Any) -> Any:
    x = cast(xp, x, accumulator(mean_dtype(dtype_name(x.dtype))))
    mean = xp.mean(x, axis=-1, keepdims=True)
    count = xp.full(x.shape[:-1], x.shape[-1], dtype=native(xp, "int64"))
    return count, xp.squeeze(mean, axis=-1), xp.sum((x - mean) ** 2, axis=-1)


def _moments_dtypes(dtype: str) -> Components:
    within = accumulator(mean_dtype(dtype))
    return {"count": "int64", "mean": within, "squares": within}


_LARGEST = re.compile(r"largest_[1-9][0-9]{0,11}")


def largest(count: int) -> Monoid:
    """Return the monoid of the `count` largest elements, in descending order.

    Their places come with them; of equal elements the first is the first.

    >>> largest(2).dtype("float32")
    'struct<values: float32[2], indices: int64[2]>'
    """
    known = MONOIDS.get(f"largest_{count}")
    if isinstance(known, Monoid):
        return known

    def take(xp: Any, x: Any, index: Any) -> Any:
        order = descending(xp, x, x.ndim - 1)[..., :count]
        return tuple(xp.take_along_axis(each, order, axis=-1) for each in (x, index))

    def combine(xp: Any, a: Any, b: Any) -> Any:
        x, index = (xp.concat([a[name], b[name]], axis=-1) for name in ("values", "indices"))
        order = xp.argsort(index, axis=-1)
        return take(xp, *(xp.take_along_axis(each, order, axis=-1) for each in (x, index)))

    def reduce(xp: Any, x: Any, index: Any) -> Any:
        x, index = take(xp, x, xp.broadcast_to(index, x.shape))
        short = (*x.shape[:-1], count - x.shape[-1])
        nothing = xp.full(short, lowest(dtype_name(x.dtype)), dtype=x.dtype)
        nowhere = xp.full(short, highest("int64"), dtype=index.dtype)
        return xp.concat([x, nothing], axis=-1), xp.concat([index, nowhere], axis=-1)

    return Monoid(
        f"largest_{count}",
        combine,
        identity=(lowest, highest),
        components=lambda dtype: {"values": (dtype, (count,)), "indices": ("int64", (count,))},
        reduce=reduce,
        check=False,
    )


for _name, _sign, _least in (("argmax", 1, lowest), ("argmin", -1, highest)):
    _combine, _reduce = _best(_sign)
    Monoid(
        _name,
        _combine,
        identity=(_least, highest),
        components=lambda dtype: {"value": dtype, "index": "int64"},
        reduce=_reduce,
        check=False,
    )
Monoid("moments", _moments, components=_moments_dtypes, reduce=_moments_of, check=False)
_SHIPPED = frozenset(MONOIDS)

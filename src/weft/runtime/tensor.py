"""`Tensor`: an array on a mesh, one shard per cell, that computes at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np
from array_api_compat import is_jax_array

from weft.errors import LayoutError, WeftError
from weft.lang.arithmetic import Arithmetic
from weft.lang.dtype import as_dtype, dtype_name, is_scalar, scalar_of
from weft.lang.kernel import Block, native
from weft.lang.operator import OPERATORS, Operator
from weft.lang.struct_array import StructArray
from weft.lang.trace import Symbol, Tracer
from weft.layout import DeviceMesh, DimSpec, ShardingSpec
from weft.plan import plan_reshard
from weft.runtime.arrays import Array, copied, empty, namespace, paste
from weft.runtime.blocks import run_block
from weft.runtime.eager import Kind, Operand, kind_of, run_operator, sharding_of
from weft.runtime.history import Origin, closed, constrained
from weft.runtime.local import Cause, Shards, move
from weft.values import FrozenMap, Point, as_shape

Dims = Iterable[DimSpec]


class Tensor(Arithmetic):
    """An array, whole or on the cells of a mesh. It never changes.

    A tensor owns its data: the array that it is made of is copied, so that changing that array
    does not change the tensor. With `copy=False` it is not, and must not be changed any more.

    Operators compute at once. Their results lie as `propagate` would have them in the same program
    written down by `trace`, with the same priorities and open dimensions; only what must move
    moves, and sums stay partial until something needs them.

    >>> from weft import DeviceMesh, DimSpec
    >>> mesh = DeviceMesh("test", (2,), ("x",))
    >>> a = Tensor.ones((4, 8)).shard(mesh, [DimSpec(["x"]), DimSpec([])])
    >>> b = a @ Tensor.ones((8, 3))
    >>> print(b)
    float32[4, 3] <@test, [{"x"}, {}]>
    >>> b.numpy()[0]
    array([8., 8., 8.], dtype=float32)
    """

    __slots__ = ("_shards", "kind", "name", "origin")

    kind: Kind
    """Its shape, sharding, dtype and library."""
    name: str
    """The name that messages use."""
    _shards: Shards
    origin: Origin
    """The program that led to it, for propagation."""

    def __init__(self, array: Array, name: str = "", *, copy: bool = True) -> None:
        if isinstance(array, Tensor):
            self.kind, self._shards, self.origin = array.kind, array._shards, array.origin
            self.name = name or array.name
            return
        if isinstance(array, bool | int | float | complex | list | tuple):
            try:
                array, copy = np.asarray(array), False
            except ValueError as error:
                raise WeftError(f"a tensor is made of rows of one length: {error}") from None
        if not hasattr(array, "dtype") or isinstance(array, np.ma.MaskedArray):
            given = "masked array" if hasattr(array, "dtype") else type(array).__name__
            raise WeftError(
                f"a tensor cannot be made of a {given}",
                hint="an array of NumPy, torch, JAX or CuPy; array.filled(value) of a masked one",
            )
        if getattr(array.dtype, "names", None):
            array = StructArray.of(array)
        xp = namespace(array)
        shape = tuple(array.shape)
        self.kind = kind_of(shape, None, array.dtype, xp)
        self._shards, self.name = [_owned(xp, array) if copy else _read_only(array)], name
        self.origin = Origin(shape, dtype_name(array.dtype))

    @classmethod
    def of_shards(
        cls,
        shards: Sequence[Array],
        spec: ShardingSpec,
        shape: Iterable[int],
        name: str = "",
        *,
        copy: bool = True,
    ) -> Tensor:
        """Make a tensor of the shards of all cells, in rank order.

        The shards are copied, unless `copy=False`.
        """
        whole, given = as_shape(shape, spec.ndim), list(shards)
        if len(given) != spec.mesh.size:
            raise LayoutError(f"{len(given)} shards are given for {spec.mesh.size} cells of {spec}")
        for rank, (shard, box) in enumerate(zip(given, spec.regions(whole))):
            if tuple(shard.shape) != box.shape:
                raise LayoutError(
                    f"cell {spec.mesh.coord(rank)} holds box {box} of {list(whole)}, and its shard "
                    f"is {list(shard.shape)}, expected {list(box.shape)}"
                )
        xp = namespace(given[0])
        kind = kind_of(whole, closed(spec), given[0].dtype, xp)
        held = [_owned(xp, shard) if copy else _read_only(shard) for shard in given]
        return _made(kind, held, Origin(whole, dtype_name(kind.dtype), spec), name)

    @classmethod
    def full(cls, shape: Iterable[int], value: Any, dtype: str = "float32") -> Tensor:
        """A tensor with one number everywhere."""
        return cls(np.full(as_shape(shape), value, native(np, as_dtype(dtype))), copy=False)

    @classmethod
    def ones(cls, shape: Iterable[int], dtype: str = "float32") -> Tensor:
        """A tensor of ones."""
        return cls.full(shape, 1, dtype)

    @classmethod
    def zeros(cls, shape: Iterable[int], dtype: str = "float32") -> Tensor:
        """A tensor of zeros."""
        return cls.full(shape, 0, dtype)

    @property
    def shape(self) -> Point:
        """The sizes of its dimensions."""
        return self.kind.shape

    @property
    def shards(self) -> list[Array]:
        """The arrays of all cells in rank order; one if it lies on no mesh.

        NumPy arrays are read-only here. Arrays of other libraries must not be changed.
        """
        for shard in self._shards:
            if isinstance(shard, np.ndarray):
                shard.flags.writeable = False
        return list(self._shards)

    @property
    def spec(self) -> ShardingSpec | None:
        """Its sharding, with nothing left open; None if it lies on no mesh."""
        return self.kind.spec

    @property
    def annotation(self) -> ShardingSpec | None:
        """The sharding that was written on it, with its priorities and open dimensions.

        For a result of an operator, on which none was written, this is how it lies.
        """
        return self.spec if self.origin.annotation is None else self.origin.annotation

    @property
    def dtype(self) -> str:
        """The dtype of its elements."""
        return dtype_name(self.kind.dtype)

    @property
    def nbytes(self) -> int:
        """The bytes of all its elements, each counted once."""
        return self.size * self.kind.itemsize

    def item(self) -> Any:
        """The one element as a number of Python."""
        return self.__array__().item()

    def tolist(self) -> Any:
        """The elements as nested lists of numbers."""
        return self.__array__().tolist()

    def named(self, name: str) -> Tensor:
        """The same tensor under a name, which messages use."""
        return _made(self.kind, self._shards, self.origin, name)

    def with_sharding(
        self, mesh: DeviceMesh | ShardingSpec, dims: Dims | str | None = None
    ) -> Tensor:
        """The same values under a sharding: a spec, a mesh and its dimensions, or a mesh and text.

        What a cell needs and does not hold moves. As in a traced program, this is a constraint for
        propagation: an open dimension keeps the axes that already cut it, and priorities count in
        the operators that follow.
        """
        annotation = as_spec(mesh, dims)
        _check_rank(self, annotation)
        shape, dtype = self.shape, dtype_name(self.kind.dtype)
        if self.spec is None and annotation.partial:
            raise LayoutError(f"a whole array is not partial: {annotation}")
        if annotation.partial or (self.spec is not None and self.spec.mesh != annotation.mesh):
            spec, origin = closed(annotation), Origin(shape, dtype, annotation)
        else:
            origin = constrained(self.origin, annotation)
            spec = sharding_of(origin)
        kind = kind_of(shape, spec, self.kind.dtype, self.kind.xp)
        return _made(kind, self.laid_out(spec), origin, self.name)

    shard = with_sharding

    def laid_out(self, spec: ShardingSpec) -> list[Array]:
        """The shards of all cells under another sharding, after what must move has moved."""
        if self.spec is None:
            (array,) = self._shards
            return [array[box.slices()] for box in spec.regions(self.shape)]
        plan = plan_reshard(self.spec, spec, self.shape, self.kind.itemsize)
        return list(move(self.kind.xp, self._shards, plan, Cause("with_sharding", self)))

    def trace(self, name: str = "input") -> Symbol:
        """Begin a traced program whose input this tensor is, sharded as it is annotated."""
        return Tracer().capture(self, self.name or name, parameter=False)

    def numpy(self) -> np.ndarray[Any, Any]:
        """The whole array, put together in this process; parts are combined.

        It is a new array: changing it does not change the tensor.
        """
        found = np.asarray(self._assembled())
        return found.copy() if self.spec is None else found

    def whole(self) -> Array:
        """The whole array, in the library of the shards; a new one, as for `numpy`."""
        found = self._assembled()
        return _owned(self.kind.xp, found) if self.spec is None else found

    def _assembled(self) -> Array:
        """The whole array, which is the tensor's own if it lies on no mesh."""
        if self.spec is None:
            return self._shards[0]
        shards = self._shards
        if self.spec.partial:
            shards = self.laid_out(ShardingSpec(self.spec.mesh, self.spec.dim_specs))
        whole = empty(self.kind.xp, self.shape, self.kind.dtype)
        for shard, box in zip(shards, self.spec.regions(self.shape)):
            whole = paste(whole, box.slices(), shard)
        return whole

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """The whole array for NumPy: read-only where it is the tensor's own."""
        found = np.asarray(self._assembled())
        if copy:
            return found.astype(found.dtype if dtype is None else dtype)
        wanted = found.dtype if dtype is None else np.dtype(dtype)
        if copy is False and (self.spec is not None or wanted != found.dtype):
            raise ValueError("a sharded tensor, or one of another dtype, must be copied")
        made: np.ndarray[Any, Any] = _read_only(found).astype(wanted, copy=False)
        return made

    def __weft_apply__(
        self, name: str, operands: Sequence[Any], attributes: dict[str, Any]
    ) -> tuple[Any, ...]:
        for operand in operands:
            if isinstance(operand, Symbol):
                return operand.__weft_apply__(name, operands, attributes)
        operands = self._converted(OPERATORS.find(name), operands)
        if None in attributes.values():
            attributes = {key: value for key, value in attributes.items() if value is not None}
        given = [Operand(t.kind, t._shards, t.origin, t.name) for t in operands]
        return tuple([_made(*result) for result in run_operator(name, attributes, given)])

    def _converted(self, operator: Operator, operands: Sequence[Any]) -> Sequence[Tensor]:
        """Return the operands as tensors of the dtypes that an operator takes."""
        xp = self.kind.xp
        known = [
            x if type(x) is Tensor or is_scalar(x) else _as_tensor(xp, number, x)
            for number, x in enumerate(operands)
        ]
        given = [x.kind.dtype if type(x) is Tensor else x for x in known]
        wanted = _conversions(operator, *given)
        if wanted is None:
            return known
        return [_typed(x, dtype, xp) for x, dtype in zip(known, wanted)]

    def __repr__(self) -> str:
        return f"Tensor({self})"

    def __str__(self) -> str:
        return f"{self.name}: {self.kind}" if self.name else str(self.kind)

    def __bool__(self) -> bool:
        return bool(self.__array__())

    def __float__(self) -> float:
        return float(self.__array__())

    def __int__(self) -> int:
        return int(self.__array__())

    def __complex__(self) -> complex:
        return complex(self.__array__())

    def __index__(self) -> int:
        return index(self.__array__())

    def __contains__(self, item: Any) -> bool:
        return item in self.__array__()


def _made(kind: Kind, shards: Shards, origin: Origin, name: str = "") -> Tensor:
    tensor = Tensor.__new__(Tensor)
    tensor.kind, tensor._shards, tensor.origin, tensor.name = kind, shards, origin, name
    return tensor


def created(name: str, attributes: Mapping[str, Any]) -> Tensor:
    """The tensor that an operator without operands makes, whole and in NumPy."""
    operator, given = OPERATORS.find(name), FrozenMap(attributes.items())
    line = operator.sign([], given)
    (array,) = run_block(operator, Block(np, line, given, line.space), ())
    return Tensor(array)


def tensor_of(shards: Shards, spec: ShardingSpec, shape: Point, name: str) -> Tensor:
    """A tensor of shards that nobody else holds, in rank order; they are not copied."""
    kind = kind_of(shape, closed(spec), shards[0].dtype, namespace(shards[0]))
    return _made(kind, shards, Origin(shape, dtype_name(kind.dtype), spec), name)


def _owned(xp: Any, array: Array) -> Array:
    """A copy of an array, unless its library has no arrays that change."""
    return array if is_jax_array(array) else copied(xp, array)


def _read_only(array: Array) -> Array:
    """A view of a NumPy array that cannot be written to; other arrays as they are."""
    if not isinstance(array, np.ndarray):
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def _as_tensor(xp: Any, number: int, operand: Any) -> Tensor:
    if isinstance(operand, Tensor):
        return operand
    if hasattr(operand, "shape") and hasattr(operand, "dtype"):
        return Tensor(xp.asarray(operand))
    raise WeftError(f"operand {number} is a {type(operand).__name__}, no tensor and no number")


@lru_cache(maxsize=4096, typed=True)
def _conversions(operator: Operator, *given: Any) -> Sequence[str] | None:
    """Return the dtype of each operand, given dtypes and numbers; None where nothing changes."""
    names = [x if is_scalar(x) else as_dtype(x) for x in given]
    try:
        wanted = operator.conversion(names)
    except WeftError as error:
        error.add_note(f"while applying {operator.name} to {', '.join(map(str, names))}")
        raise
    return None if list(wanted) == names else tuple(wanted)


def _typed(operand: Any, dtype: str, xp: Any) -> Tensor:
    """Return a tensor, or a number of Python, in a dtype."""
    if not isinstance(operand, Tensor):
        found = _number(scalar_of(operand, dtype), dtype, xp)
        return _made(found.kind, found._shards, Origin((), dtype))  # an input for each use
    if operand.dtype == dtype:
        return operand
    given = Operand(operand.kind, operand._shards, operand.origin, operand.name)
    (made,) = run_operator("convert", {"dtype": dtype}, [given])
    return _made(*made)


@lru_cache(maxsize=1024, typed=True)
def _number(value: Any, dtype: str, xp: Any) -> Tensor:
    return Tensor(xp.asarray(value, dtype=native(xp, dtype)), copy=False)


def as_spec(mesh: DeviceMesh | ShardingSpec, dims: Dims | str | None) -> ShardingSpec:
    """A sharding from a spec, from a mesh and its dimensions, or from a mesh and text."""
    if isinstance(mesh, ShardingSpec) and dims is None:
        return mesh
    if not isinstance(mesh, DeviceMesh) or dims is None:
        raise LayoutError("a sharding needs a mesh and one DimSpec for each dimension, or a spec")
    return ShardingSpec.parse(dims, mesh) if isinstance(dims, str) else ShardingSpec(mesh, dims)


def _check_rank(tensor: Tensor, spec: ShardingSpec) -> None:
    if spec.ndim != len(tensor.shape):
        raise LayoutError(
            f"{tensor} has rank {len(tensor.shape)} and the sharding rank {spec.ndim}: {spec}"
        )

"""`Tensor`: an array on a mesh, one shard a cell, that computes at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from weft.errors import LayoutError, WeftError
from weft.lang.arithmetic import Arithmetic
from weft.lang.dtype import as_dtype, dtype_name, is_scalar, scalar_of
from weft.lang.kernels.dtypes import native
from weft.lang.operator import OPERATORS, Operator
from weft.lang.trace import Symbol, Tracer
from weft.layout import DeviceMesh, DimSpec, ShardingSpec
from weft.plan import plan_reshard
from weft.run.arrays import Array, namespace, paste
from weft.run.cells import ALL, Cause, Shards
from weft.run.eager import Kind, kind_of, run_operator
from weft.values import Point, as_shape

Dims = Iterable[DimSpec]


class Tensor(Arithmetic):
    """An array, whole or on the cells of a mesh; nothing changes it.

    It keeps the arrays that it is given, of whatever library. Operators infer where the result
    lies, move only what must move, and leave sums partial until something needs them.

    >>> from weft import DeviceMesh, DimSpec
    >>> mesh = DeviceMesh("test", (2,), ("x",))
    >>> a = Tensor.ones((4, 8)).shard(mesh, [DimSpec(["x"]), DimSpec([])])
    >>> b = a @ Tensor.ones((8, 3))
    >>> print(b)
    float32[4, 3] <@test, [{"x"}, {}]>
    >>> b.numpy()[0]
    array([8., 8., 8.], dtype=float32)
    """

    __slots__ = ("kind", "name", "shards")

    kind: Kind
    """What it is apart from its numbers."""
    shards: Shards
    """The arrays of all cells in rank order; one if it lies on no mesh."""
    name: str
    """What messages call it."""

    def __init__(self, array: Array, name: str = "") -> None:
        if isinstance(array, bool | int | float | complex | list | tuple):
            array = np.asarray(array)
        self.kind = kind_of(tuple(array.shape), None, array.dtype, namespace(array))
        self.shards, self.name = [array], name

    @classmethod
    def of_shards(
        cls, shards: Sequence[Array], spec: ShardingSpec, shape: Iterable[int], name: str = ""
    ) -> Tensor:
        """A tensor made of the shards of all cells, in rank order."""
        whole, given = as_shape(shape, spec.ndim), list(shards)
        if len(given) != spec.mesh.size:
            raise LayoutError(f"{len(given)} shards are given for {spec.mesh.size} cells of {spec}")
        for rank, (shard, box) in enumerate(zip(given, spec.regions(whole))):
            if tuple(shard.shape) != box.shape:
                raise LayoutError(
                    f"cell {spec.mesh.coord(rank)} holds box {box} of {list(whole)}, and its shard "
                    f"is {list(shard.shape)}, expected {list(box.shape)}"
                )
        kind = kind_of(whole, spec, given[0].dtype, namespace(given[0]))
        return _made(kind, given, name)

    @classmethod
    def full(cls, shape: Iterable[int], value: Any, dtype: str = "float32") -> Tensor:
        """A tensor with one number everywhere."""
        return cls(np.full(as_shape(shape), value, native(np, as_dtype(dtype))))

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
    def spec(self) -> ShardingSpec | None:
        """How it lies on a mesh; None if it does not."""
        return self.kind.spec

    @property
    def dtype(self) -> str:
        """The dtype of its elements."""
        return dtype_name(self.kind.dtype)

    def named(self, name: str) -> Tensor:
        """The same tensor under a name, which messages use."""
        return _made(self.kind, self.shards, name)

    def with_sharding(self, mesh: DeviceMesh | ShardingSpec, dims: Dims | None = None) -> Tensor:
        """The same values under another sharding: what a cell needs and does not hold moves."""
        spec = _as_spec(mesh, dims)
        _check_rank(self, spec)
        if self.spec is None:
            (array,) = self.shards
            if spec.partial:
                raise LayoutError(f"a whole array is not partial: {spec}")
            shards = [array[box.slices()] for box in spec.regions(self.shape)]
            return _made(_with(self.kind, spec), shards, self.name)
        return _resharded(self, self.spec, spec)

    shard = with_sharding

    def trace(self, name: str = "input") -> Symbol:
        """The beginning of a traced program, whose input this tensor is."""
        return Tracer().capture(self, self.name or name, parameter=False)

    def numpy(self) -> np.ndarray[Any, Any]:
        """The whole array, put together in this process; parts are combined."""
        return np.asarray(self.whole())

    def whole(self) -> Array:
        """The whole array, in the library of the shards."""
        if self.spec is None:
            return self.shards[0]
        tensor = self
        if self.spec.partial:
            tensor = self.with_sharding(ShardingSpec(self.spec.mesh, self.spec.dim_specs))
        whole = self.kind.xp.empty(self.shape, dtype=self.kind.dtype)
        for shard, box in zip(tensor.shards, self.spec.regions(self.shape)):
            whole = paste(whole, box.slices(), shard)
        return whole

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.numpy(), dtype=dtype)

    def __weft_apply__(
        self, name: str, operands: Sequence[Any], attributes: dict[str, Any]
    ) -> tuple[Any, ...]:
        for operand in operands:
            if isinstance(operand, Symbol):
                return operand.__weft_apply__(name, operands, attributes)
        operands = self._converted(OPERATORS.find(name), operands)
        if None in attributes.values():
            attributes = {key: value for key, value in attributes.items() if value is not None}
        kinds = [operand.kind for operand in operands]
        shards = [operand.shards for operand in operands]
        names = [operand.name for operand in operands]
        return tuple(
            [_made(*made) for made in run_operator(name, attributes, kinds, shards, names)]
        )

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

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __float__(self) -> float:
        return float(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())


def _made(kind: Kind, shards: Shards, name: str = "") -> Tensor:
    tensor = Tensor.__new__(Tensor)
    tensor.kind, tensor.shards, tensor.name = kind, shards, name
    return tensor


def _with(kind: Kind, spec: ShardingSpec) -> Kind:
    return kind_of(kind.shape, spec, kind.dtype, kind.xp)


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
        return _number(scalar_of(operand, dtype), dtype, xp)
    if operand.dtype == dtype:
        return operand
    (made,) = run_operator(
        "convert", {"dtype": dtype}, [operand.kind], [operand.shards], [operand.name]
    )
    return _made(*made)


@lru_cache(maxsize=1024, typed=True)
def _number(value: Any, dtype: str, xp: Any) -> Tensor:
    return Tensor(xp.asarray(value, dtype=native(xp, dtype)))


def _as_spec(mesh: DeviceMesh | ShardingSpec, dims: Dims | None) -> ShardingSpec:
    if isinstance(mesh, ShardingSpec):
        return mesh
    if dims is None:
        raise LayoutError("a sharding needs a mesh and one DimSpec for each dimension, or a spec")
    return ShardingSpec(mesh, dims)


def _check_rank(tensor: Tensor, spec: ShardingSpec) -> None:
    if spec.ndim != len(tensor.shape):
        raise LayoutError(
            f"{tensor} has rank {len(tensor.shape)} and the sharding rank {spec.ndim}: {spec}"
        )


def _resharded(tensor: Tensor, src: ShardingSpec, dst: ShardingSpec) -> Tensor:
    plan = plan_reshard(src, dst, tensor.shape, tensor.kind.itemsize)
    cause = Cause("with_sharding", tensor)
    shards = ALL.move(tensor.kind.xp, tensor.shards, plan.steps, cause)
    return _made(_with(tensor.kind, dst), shards, tensor.name)

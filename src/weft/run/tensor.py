"""`Tensor`: an array on a mesh, one shard a cell, that computes at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from weft.errors import LayoutError, WeftError
from weft.lang.arithmetic import Arithmetic
from weft.lang.trace import Symbol, Tracer, dtype_name
from weft.layout import DeviceMesh, DimSpec, ShardingSpec
from weft.plan import plan_reshard
from weft.run.arrays import Array, namespace, paste
from weft.run.cells import ALL, Cause
from weft.run.eager import Operand, run_operator
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

    __slots__ = ("_name", "_shape", "shards", "spec")

    def __init__(self, array: Array, name: str = "") -> None:
        if isinstance(array, bool | int | float | complex | list | tuple):
            array = np.asarray(array)
        self._shape: Point = tuple(array.shape)
        self.spec: ShardingSpec | None = None
        self.shards: Sequence[Array] = (array,)
        self._name = name

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
        return _made(whole, spec, given, name)

    @classmethod
    def full(cls, shape: Iterable[int], value: Any, dtype: str = "float32") -> Tensor:
        """A tensor with one number everywhere."""
        return cls(np.full(as_shape(shape), value, dtype))

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
        return self._shape

    @property
    def dtype(self) -> str:
        """The dtype of its elements."""
        return dtype_name(self.shards[0].dtype)

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return int(self.shards[0].dtype.itemsize)

    @property
    def name(self) -> str:
        """The name that it was given, for messages."""
        return self._name

    def named(self, name: str) -> Tensor:
        """The same tensor under a name, which messages use."""
        return _made(self._shape, self.spec, self.shards, name)

    def with_sharding(self, mesh: DeviceMesh | ShardingSpec, dims: Dims | None = None) -> Tensor:
        """The same values under another sharding: what a cell needs and does not hold moves."""
        spec = _as_spec(mesh, dims)
        _check_rank(self, spec)
        if self.spec is None:
            (array,) = self.shards
            shards = [array[box.slices()] for box in spec.regions(self._shape)]
            if spec.partial:
                raise LayoutError(f"a whole array is not partial: {spec}")
            return _made(self._shape, spec, shards, self._name)
        return _resharded(self, self.spec, spec)

    shard = with_sharding

    def trace(self, name: str = "input") -> Symbol:
        """The beginning of a traced program, whose input this tensor is."""
        return Tracer().capture(self, self._name or name)

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
        xp, spec = namespace(self.shards[0]), tensor.spec
        assert spec is not None
        whole = xp.empty(self._shape, dtype=self.shards[0].dtype)
        for shard, box in zip(tensor.shards, spec.regions(self._shape)):
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
        xp = namespace(self.shards[0])
        given = [_operand(xp, self, operand, number) for number, operand in enumerate(operands)]
        said = {key: value for key, value in attributes.items() if value is not None}
        return tuple(_made(*made, "") for made in run_operator(name, said, xp, given))

    def __repr__(self) -> str:
        return f"Tensor({self})"

    def __str__(self) -> str:
        text = f"{self.dtype}{list(self._shape)}"
        return f"{self._name + ': ' if self._name else ''}{text} {self.spec or ''}".rstrip()

    def __len__(self) -> int:
        return self._shape[0]

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __float__(self) -> float:
        return float(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())


def _made(shape: Point, spec: ShardingSpec | None, shards: Sequence[Array], name: str) -> Tensor:
    tensor = Tensor.__new__(Tensor)
    tensor._shape, tensor.spec, tensor.shards, tensor._name = shape, spec, shards, name
    return tensor


def _operand(xp: Any, like: Tensor, operand: Any, number: int) -> Operand:
    if isinstance(operand, Tensor):
        return Operand(
            operand._shape,
            operand.spec,
            operand.shards,
            operand.itemsize,
            operand._name or f"{operand.dtype}",
        )
    if isinstance(operand, bool | int | float | complex):
        array = xp.asarray(operand, dtype=like.shards[0].dtype)
        return Operand((), None, (array,), like.itemsize, "a number")
    if hasattr(operand, "shape") and hasattr(operand, "dtype"):
        array = xp.asarray(operand)
        return Operand(tuple(array.shape), None, (array,), int(array.dtype.itemsize), "an array")
    raise WeftError(f"operand {number} is a {type(operand).__name__}, no tensor and no number")


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
    plan = plan_reshard(src, dst, tensor.shape, tensor.itemsize)
    xp, cause = namespace(tensor.shards[0]), Cause("with_sharding", str(tensor))
    shards = ALL.move(xp, tensor.shards, plan.steps, cause)
    return _made(tensor.shape, dst, shards, tensor.name)

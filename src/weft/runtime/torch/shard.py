"""`Shard`: what one rank holds of an array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import array_api_compat.torch as xp
import torch

from weft.errors import LayoutError
from weft.lang.dtype import dtype_name
from weft.lang.monoid import check_parts
from weft.layout import DimSpec, ShardingSpec
from weft.plan import plan_reshard
from weft.runtime.local import Cause, move
from weft.runtime.torch.ranks import Ranks
from weft.space import ZRange
from weft.values import Point, as_shape


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class Shard:
    """The tensor of this rank, and how the array lies of which it is a part.

    It is what `run` gives, and what it takes where a rank does not have all of an input.

    >>> Shard(torch.ones(2, 4), spec, (8, 4), name="x")  # doctest: +SKIP
    Shard(x: float32[8, 4] <@m, [{"x"}, {}]>, [2:4, 0:4])
    """

    array: torch.Tensor
    spec: ShardingSpec
    shape: Point
    """The shape of the whole array."""
    name: str
    group: Any

    def __init__(
        self,
        array: torch.Tensor,
        spec: ShardingSpec,
        shape: Iterable[int],
        name: str = "",
        group: Any = None,
    ) -> None:
        ranks = Ranks.of(group)
        ranks.check(spec.mesh)
        whole = as_shape(shape, spec.ndim)
        for monoid in spec.partial.values():
            check_parts(monoid, dtype_name(array.dtype))
        for key, value in zip(self.__slots__, (array, spec, whole, name, group)):
            object.__setattr__(self, key, value)
        if tuple(array.shape) != self.box.shape:
            raise LayoutError(
                f"rank {ranks.rank} holds box {self.box} of {self}, and its shard is "
                f"{list(array.shape)}, expected {list(self.box.shape)}"
            )

    @property
    def box(self) -> ZRange:
        """The box of the array that lies here."""
        return self.spec.region(self.shape, Ranks.of(self.group).cell(self.spec.mesh))

    @property
    def dtype(self) -> str:
        """The dtype of its elements."""
        return dtype_name(self.array.dtype)

    def with_sharding(self, spec: ShardingSpec) -> Shard:
        """The same array under another sharding; all ranks call it together."""
        return self._moved(spec, "with_sharding")

    def gather(self) -> torch.Tensor:
        """The whole array, on every rank; all call it together. Parts are combined."""
        whole = ShardingSpec(self.spec.mesh, [DimSpec()] * self.spec.ndim)
        return self._moved(whole, "gather").array

    def _moved(self, spec: ShardingSpec, operator: str) -> Shard:
        ranks = Ranks.of(self.group)
        ranks.check(spec.mesh)
        plan = plan_reshard(self.spec, spec, self.shape, self.array.itemsize)
        cause = Cause(operator, self)
        with working_on(self.array.device):
            (array,) = move(xp, [self.array], plan, cause, ranks.here)
        return Shard(array, spec, self.shape, self.name, self.group)

    def __str__(self) -> str:
        name = f"{self.name}: " if self.name else ""
        return f"{name}{self.dtype}{list(self.shape)} {self.spec}"

    def __repr__(self) -> str:
        return f"Shard({self}, {self.box})"


@contextmanager
def working_on(device: torch.device) -> Iterator[None]:
    """Create arrays on a device inside the block, without recording gradients."""
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if device != torch.get_default_device():  # being asked every time costs every operation
            stack.enter_context(device)
        yield

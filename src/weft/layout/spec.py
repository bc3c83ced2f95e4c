"""`DimSpec` and `ShardingSpec`: how an array lies on a mesh."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, product
from math import prod
from typing import TypeAlias

from weft.draw import Drawing, Drawn
from weft.errors import LayoutError, WeftError
from weft.layout.axis import as_number, check_apart
from weft.layout.mesh import Cell, DeviceMesh
from weft.layout.picture import draw_sharding
from weft.space import Digit, ZRange, matching, weigh
from weft.space.zrange import unchecked, unchecked_all
from weft.text.shardy import Axis, SubAxis, as_axes, read_sharding, write_axis, write_symbol
from weft.values import (
    MONOIDS,
    FrozenMap,
    Point,
    as_count,
    as_point,
    as_shape,
    as_tuple,
    freeze,
)


@dataclass(frozen=True, slots=True, init=False)
class DimSpec:
    """How one dimension is cut: the axes, major to minor.

    `is_open` lets propagation add axes behind them; `priority` is the round of propagation in
    which they count, 0 first.

    >>> print(DimSpec(["x", "y:(1)2"], is_open=True, priority=1))
    {"x", "y":(1)2, ?}p1
    """

    axes: tuple[Axis, ...]
    is_open: bool
    priority: int

    def __init__(self, axes: Iterable[Axis] = (), is_open: bool = False, priority: int = 0) -> None:
        rounds = as_count(priority, "priority")
        freeze(self, axes=as_axes(axes, "axes"), is_open=bool(is_open), priority=rounds)

    def __str__(self) -> str:
        axes = [*map(write_axis, self.axes), *("?" * self.is_open)]
        return f"{{{', '.join(axes)}}}" + f"p{self.priority}" * (self.priority > 0)


Partial: TypeAlias = (
    Mapping[str, str] | Mapping[SubAxis, str] | Mapping[Axis, str] | Iterable[tuple[Axis, str]]
)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class ShardingSpec(Drawn):
    """How an array lies on a mesh: which axes cut which dimension, and what the others hold.

    Axes that cut nothing hold replicas; naming them in `replicated_axes` keeps propagation from
    using them. Axes in `partial` hold parts to be combined by a monoid, minor axes first.

    A dimension of size n cut K-fold is cut into blocks of c = ceil(n / K): cell k, in mixed radix
    over its axes, holds [k·c, (k+1)·c) as far as n reaches, which may be short or empty.

    >>> mesh = DeviceMesh("m", (2, 4), ("dp", "tp"))
    >>> spec = ShardingSpec(mesh, [DimSpec(["dp"]), DimSpec(["tp"])])
    >>> print(spec, spec.region((8, 14), (1, 3)))
    <@m, [{"dp"}, {"tp"}]> [4:8, 12:14]
    """

    mesh: DeviceMesh
    dim_specs: tuple[DimSpec, ...]
    replicated_axes: tuple[Axis, ...]
    partial: Mapping[Axis, str]
    grid: Point = field(init=False, compare=False)
    """How many blocks each dimension is cut into."""
    digits: tuple[tuple[Digit, ...], ...] = field(init=False, compare=False)
    """For each dimension, the digits of a cell's coordinate that number its block."""
    parts: tuple[tuple[Digit, str], ...] = field(init=False, compare=False)
    """The digits that number the part of a cell, in mesh order, with their monoids."""
    _hash: int = field(init=False, compare=False)

    def __init__(
        self,
        mesh: DeviceMesh,
        dim_specs: Iterable[DimSpec],
        replicated_axes: Iterable[Axis] = (),
        partial: Partial = (),
    ) -> None:
        uses = list[tuple[Digit, Axis, str]]()
        if not isinstance(mesh, DeviceMesh):
            raise LayoutError(f"a sharding needs a DeviceMesh, got {mesh!r}")
        try:
            dims = as_tuple(dim_specs, "dim_specs", DimSpec)
        except WeftError as error:
            error.add_note("hint: write [DimSpec([...]), ...], one for each dimension")
            raise

        def use(axes: Iterable[Axis], role: str) -> list[Digit]:
            found = [(mesh.digit(axis, role), axis, role) for axis in axes]
            uses.extend(found)
            return [digit for digit, _, _ in found]

        def in_order(digits: Iterable[Digit]) -> tuple[Digit, ...]:
            return as_number(sorted(digits, key=lambda digit: (digit.dim, -digit.divisor)))

        cuts = [as_number(use(dim.axes, f"cuts dimension {n}")) for n, dim in enumerate(dims)]
        copies = use(as_axes(replicated_axes, "replicated_axes"), "is replicated")
        parts: dict[str, list[Digit]] = {}
        pairs = partial.items() if isinstance(partial, Mapping) else partial
        for given, monoid in as_tuple(pairs, "partial, if no mapping,", tuple):
            (axis,) = as_axes((given,), "partial")
            if monoid not in MONOIDS:
                raise LayoutError(
                    f'axis {write_axis(axis)} is unreduced by "{monoid}", which is not a monoid',
                    hint=f"the monoids are {', '.join(MONOIDS)}",
                )
            parts.setdefault(monoid, []).extend(use((axis,), f"is unreduced by {monoid}"))
        check_apart(uses)
        spelled = [tuple(map(mesh.axis, cut)) for cut in cuts]
        known = sorted(parts, key=MONOIDS.index)
        joined = [(digit, monoid) for monoid in known for digit in in_order(parts[monoid])]
        freeze(
            self,
            mesh=mesh,
            dim_specs=tuple(DimSpec(a, d.is_open, d.priority) for a, d in zip(spelled, dims)),
            replicated_axes=tuple(map(mesh.axis, in_order(copies))),
            partial=FrozenMap((mesh.axis(digit), monoid) for digit, monoid in joined),
            grid=tuple(prod(digit.radix for digit in cut) for cut in cuts),
            digits=tuple(cuts),
            parts=tuple(sorted(joined, key=lambda each: (each[0].dim, -each[0].divisor))),
            _hash=hash((mesh, *spelled)),  # planners look shardings up all the time
        )

    @classmethod
    def parse(
        cls, text: str, meshes: DeviceMesh | Iterable[DeviceMesh] | Mapping[str, DeviceMesh]
    ) -> ShardingSpec:
        """Read a sharding from its text form; `meshes` are those that it may name.

        >>> mesh = DeviceMesh.parse('@m = <["x"=8, "y"=2]>')
        >>> spec = ShardingSpec.parse('<@m, [{"x":(1)2, ?}p1, {}], replicated={"y"}>', mesh)
        >>> spec.grid, str(spec)
        ((2, 1), '<@m, [{"x":(1)2, ?}p1, {}], replicated={"y"}>')
        """
        name, dims, replicated, partial = read_sharding(text)
        given = [meshes] if isinstance(meshes, DeviceMesh) else meshes
        listed = given.values() if isinstance(given, Mapping) else given
        found = as_tuple(listed, "meshes", DeviceMesh)
        known = given if isinstance(given, Mapping) else {mesh.name: mesh for mesh in found}
        if name not in known:
            raise LayoutError(
                f"mesh {write_symbol(name)} is not known",
                hint=f"known are {', '.join(map(write_symbol, known)) or 'none'}",
            )
        try:
            return cls(known[name], [DimSpec(*dim) for dim in dims], replicated, partial)
        except LayoutError as error:
            error.add_note(f"while reading {text}")
            raise

    @property
    def ndim(self) -> int:
        """The rank of the array."""
        return len(self.dim_specs)

    @property
    def replica_count(self) -> int:
        """How many cells hold a copy of the same block (and the same part, where partial).

        >>> ShardingSpec(DeviceMesh("m", (2, 4), ("x", "y")), [DimSpec(["x"])]).replica_count
        4
        """
        return self.mesh.size // prod(self.grid) // prod(map(self.mesh.axis_size, self.partial))

    def region(self, shape: Iterable[int], coord: Cell) -> ZRange:
        """The box of an array of that shape that the cell at a coordinate, or of a rank, holds.

        >>> spec = ShardingSpec(DeviceMesh("m", (4,), ("x",)), [DimSpec(["x"])])
        >>> print(*(spec.region((9,), cell) for cell in range(4)))
        [0:3] [3:6] [6:9] [9:9]
        """
        return self._box(as_shape(shape, self.ndim), self.block(coord))

    def block(self, cell: Cell) -> Point:
        """The number of the block that a cell holds, in each dimension.

        >>> spec = ShardingSpec(DeviceMesh("m", (2, 4), ("x", "y")), [DimSpec(["y", "x"])])
        >>> spec.block((1, 2))
        (5,)
        """
        coord, block = self.mesh.coord(cell), []
        for digits in self.digits:
            number = 0
            for dim, divisor, radix, stride in digits:
                number += coord[dim] // divisor % radix * stride
            block.append(number)
        return tuple(block)

    def box(self, shape: Iterable[int], block: Iterable[int]) -> ZRange:
        """The box of a block.

        >>> print(ShardingSpec(DeviceMesh("m", (4,), ("x",)), [DimSpec(["x"])]).box((10,), (3,)))
        [9:10]
        """
        return self._box(as_shape(shape, self.ndim), self._as_block(block))

    def _box(self, shape: Point, block: Sequence[int]) -> ZRange:
        start, stop = [], []
        for n, count, k in zip(shape, self.grid, block):
            low = -(-n // count) * k
            start.append(low if low < n else n)
            high = -(-n // count) + low
            stop.append(high if high < n else n)
        return unchecked(tuple(start), tuple(stop))

    def boxes(self, shape: Iterable[int]) -> list[ZRange]:
        """The boxes of all blocks, each once, in row-major order: they tile the array.

        >>> spec = ShardingSpec(DeviceMesh("m", (2, 2), ("x", "y")), [DimSpec(["y"])])
        >>> print(*spec.boxes((8,)))
        [0:4] [4:8]
        """
        edges = []
        for n, count in zip(as_shape(shape, self.ndim), self.grid):
            full = list(range(0, n, -(-n // count) or 1))
            edges.append(full + [n] * (count + 1 - len(full)))
        starts, stops = product(*(e[:-1] for e in edges)), product(*(e[1:] for e in edges))
        return unchecked_all(prod(self.grid), starts, stops)

    def regions(self, shape: Iterable[int]) -> list[ZRange]:
        """The boxes of all cells, in rank order.

        >>> spec = ShardingSpec(DeviceMesh("m", (2, 2), ("x", "y")), [DimSpec(["y"])])
        >>> print(*spec.regions((8,)))
        [0:4] [4:8] [0:4] [4:8]
        """
        find = _block_numbers if self.mesh.size <= 4096 else _block_numbers.__wrapped__
        boxes, numbers = self.boxes(shape), find(self.mesh.shape, self.digits)
        return boxes if numbers is None else [boxes[number] for number in numbers]

    def block_of(self, shape: Iterable[int], point: Iterable[int]) -> Point:
        """The block whose box holds a point of the array.

        >>> ShardingSpec(DeviceMesh("m", (4,), ("x",)), [DimSpec(["x"])]).block_of((10,), (9,))
        (3,)
        """
        sizes, at = as_shape(shape, self.ndim), as_point(point, "point", self.ndim)
        for dim, (x, n) in enumerate(zip(at, sizes)):
            if not 0 <= x < n:
                raise LayoutError(f"dimension {dim} of size {n} has no coordinate {x}")
        return tuple(x // extent for x, extent in zip(at, self.shard_shape(sizes)))

    def holders(self, block: Iterable[int]) -> Iterator[Point]:
        """The cells that hold a block, whole or in part, in rank order.

        >>> spec = ShardingSpec(DeviceMesh("m", (2, 2), ("x", "y")), [DimSpec(["y"])])
        >>> list(spec.holders((1,)))
        [(0, 1), (1, 1)]
        """
        numbered = zip(self.digits, self._as_block(block))
        fixed = [(d, number // d.stride % d.radix) for digits, number in numbered for d in digits]
        return matching(self.mesh.shape, fixed)

    def replicas(self, cell: Cell) -> Iterator[Point]:
        """The cells that hold the same values as this one, itself included, in rank order.

        >>> spec = ShardingSpec(DeviceMesh("m", (2, 2), ("x", "y")), [DimSpec(["y"])])
        >>> list(spec.replicas((0, 1)))
        [(0, 1), (1, 1)]
        """
        coord = self.mesh.coord(cell)
        digits = (*chain.from_iterable(self.digits), *(digit for digit, _ in self.parts))
        return matching(self.mesh.shape, [(digit, digit.of(coord)) for digit in digits])

    def shard_shape(self, shape: Iterable[int]) -> Point:
        """The shape of a full shard; shards at the edge may be smaller.

        >>> ShardingSpec(DeviceMesh("m", (4,), ("x",)), [DimSpec(["x"])]).shard_shape((10,))
        (3,)
        """
        return tuple(-(-n // count) for n, count in zip(as_shape(shape, self.ndim), self.grid))

    def is_even(self, shape: Iterable[int]) -> bool:
        """Whether all shards of an array of that shape have the same shape.

        >>> ShardingSpec(DeviceMesh("m", (4,), ("x",)), [DimSpec(["x"])]).is_even((10,))
        False
        """
        return not any(n % count for n, count in zip(as_shape(shape, self.ndim), self.grid))

    def drawing(self, shape: Iterable[int] | None = None) -> Drawing:
        """An array of that shape with the devices that hold each box; without one, the blocks."""
        return draw_sharding(self, None if shape is None else as_shape(shape, self.ndim))

    def _as_block(self, block: Iterable[int]) -> Point:
        numbers = as_point(block, "block", self.ndim)
        for dim, (k, count) in enumerate(zip(numbers, self.grid)):
            if not 0 <= k < count:
                raise LayoutError(f"dimension {dim} has no block {k}: it is cut into {count}")
        return numbers

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        # Made anew where it is read: the hash of a string differs from process to process.
        given = self.mesh, self.dim_specs, self.replicated_axes, tuple(self.partial.items())
        return ShardingSpec, given

    def __repr__(self) -> str:
        return f"ShardingSpec.parse({str(self)!r}, {self.mesh!r})"

    def __str__(self) -> str:
        clauses = [write_symbol(self.mesh.name), f"[{', '.join(map(str, self.dim_specs))}]"]
        if self.replicated_axes:
            clauses.append(f"replicated={DimSpec(self.replicated_axes)}")
        for monoid in dict.fromkeys(self.partial.values()):
            axes = DimSpec(axis for axis, by in self.partial.items() if by == monoid)
            clauses.append(f"unreduced={'' if monoid == 'sum' else monoid}{axes}")
        return f"<{', '.join(clauses)}>"


@lru_cache(maxsize=64)
def _block_numbers(shape: Point, digits: tuple[tuple[Digit, ...], ...]) -> list[int] | None:
    """The number of the block of every cell, counted row-major; None if they are in order."""
    flat, weight = list[Digit](), 1
    for digit in reversed([digit for each in digits for digit in each]):
        flat.append(digit._replace(stride=weight))
        weight *= digit.radix
    numbers = weigh(shape, flat)
    return None if numbers == list(range(len(numbers))) else numbers

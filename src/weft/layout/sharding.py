"""`DimSpec` and `ShardingSpec`: how an array is distributed over a mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, pairwise
from math import prod
from operator import itemgetter
from typing import TypeAlias

from weft.draw import Drawing, Drawn
from weft.errors import LayoutError, WeftError
from weft.layout.mesh import Cell, DeviceMesh
from weft.layout.picture import draw_sharding
from weft.layout.shardy_text import (
    Axis,
    SubAxis,
    as_axes,
    read_dim,
    read_sharding,
    write_axis,
    write_symbol,
)
from weft.space import BlockGrid, Digit, ZRange, matching, weigh
from weft.values import (
    MONOIDS,
    FrozenMap,
    Point,
    as_count,
    as_point,
    as_shape,
    as_tuple,
    check_list,
    counted,
    freeze,
    monoid_hint,
)


@dataclass(frozen=True, slots=True, init=False)
class DimSpec:
    """The axes that one dimension is sharded along, major to minor.

    `is_open` lets propagation append axes; `priority` is the round of propagation in which the
    axes are used, 0 first. Blocks have one size unless `cut_points` says where each but the last
    ends.

    >>> print(DimSpec(["x", "y:(1)2"], is_open=True, priority=1))
    {"x", "y":(1)2, ?}p1
    >>> print(DimSpec(["x"], cut_points=[3, 7]))
    {"x"} at [3, 7]
    """

    axes: tuple[Axis, ...]
    is_open: bool
    priority: int
    cut_points: Point | None

    def __init__(
        self,
        axes: Iterable[Axis] = (),
        is_open: bool = False,
        priority: int = 0,
        cut_points: Iterable[int] | None = None,
    ) -> None:
        rounds = as_count(priority, "priority")
        points = None if cut_points is None else as_point(cut_points, "cut_points")
        if points is not None:
            if is_open:
                raise LayoutError(f"a dimension cut at {list(points)} cannot be open: drop the '?'")
            if any(a > b for a, b in pairwise((0, *points))):
                raise LayoutError(f"cut points rise from 0, got {list(points)}")
        freeze(
            self,
            axes=as_axes(axes, "axes"),
            is_open=bool(is_open),
            priority=rounds,
            cut_points=points or None,
        )

    @property
    def closed(self) -> DimSpec:
        """The same cut, closed to propagation and without a priority."""
        return DimSpec(self.axes, cut_points=self.cut_points)

    @classmethod
    def parse(cls, text: str | DimSpec) -> DimSpec:
        """Read one dimension of a sharding from its text form; a `DimSpec` is returned as it is.

        >>> DimSpec.parse('{"x", ?}p1')
        DimSpec(axes=('x',), is_open=True, priority=1, cut_points=None)
        """
        if isinstance(text, DimSpec):
            return text
        if not isinstance(text, str):
            raise LayoutError(f"expected a DimSpec or its text, got {text!r}")
        return cls(*read_dim(text))

    def __str__(self) -> str:
        axes = [*map(write_axis, self.axes), *("?" * self.is_open)]
        points = "" if self.cut_points is None else f" at {list(self.cut_points)}"
        return f"{{{', '.join(axes)}}}" + f"p{self.priority}" * (self.priority > 0) + points


Partial: TypeAlias = (
    Mapping[str, str] | Mapping[SubAxis, str] | Mapping[Axis, str] | Iterable[tuple[Axis, str]]
)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class ShardingSpec(Drawn):
    """The distribution of an array over a mesh: the axes of each dimension, replicas and parts.

    Axes that shard nothing hold replicas; naming them in `replicated_axes` keeps propagation from
    using them. Axes in `partial` hold parts to be combined by a monoid, minor axes first.

    A dimension whose axes have K cells together is cut into K blocks, by the rule of `BlockGrid` or
    at K - 1 cut points; the number of a cell's block is its coordinate on those axes, in mixed
    radix.

    >>> mesh = DeviceMesh("m", (2, 4), ("dp", "tp"))
    >>> spec = ShardingSpec(mesh, [DimSpec(["dp"]), DimSpec(["tp"])])
    >>> print(spec, spec.region((8, 14), (1, 3)))
    <@m, [{"dp"}, {"tp"}]> [4:8, 12:14]

    The mesh and the dimensions may be given as text:

    >>> ShardingSpec('@m = <["dp"=2, "tp"=4]>', ['{"dp"}', '{"tp"}']) == spec
    True
    """

    mesh: DeviceMesh
    dim_specs: tuple[DimSpec, ...]
    replicated_axes: tuple[Axis, ...]
    partial: Mapping[Axis, str]
    grid: Point = field(init=False, compare=False)
    """The number of blocks of each dimension."""
    cut_points: tuple[Point | None, ...] | None = field(init=False, compare=False)
    """The cut points of each dimension; None where all are cut by the rule."""
    digits: tuple[tuple[Digit, ...], ...] = field(init=False, compare=False)
    """For each dimension, the digits of a cell's coordinate that number its block."""
    parts: tuple[tuple[Digit, str], ...] = field(init=False, compare=False)
    """The digits that number the part of a cell, in mesh order, with their monoids."""
    _hash: int = field(init=False, compare=False)

    def __init__(
        self,
        mesh: DeviceMesh | str,
        dim_specs: Iterable[DimSpec | str],
        replicated_axes: Iterable[Axis] = (),
        partial: Partial = (),
    ) -> None:
        uses = list[tuple[Digit, Axis, str]]()
        cells = DeviceMesh.parse(mesh)
        dims = _as_dims(dim_specs)

        def use(axes: Iterable[Axis], role: str) -> list[Digit]:
            named = [(cells.digit(axis, role), axis, role) for axis in axes]
            uses.extend(named)
            return [digit for digit, _, _ in named]

        def in_order(digits: Iterable[Digit]) -> tuple[Digit, ...]:
            return join_digits(sorted(digits, key=lambda digit: (digit.dim, -digit.divisor)))

        cuts = [join_digits(use(dim.axes, f"cuts dimension {n}")) for n, dim in enumerate(dims)]
        copies = use(as_axes(replicated_axes, "replicated_axes"), "is replicated")
        parts: dict[str, list[Digit]] = {}
        pairs = partial.items() if isinstance(partial, Mapping) else partial
        for given, monoid in as_tuple(pairs, "partial, unless a mapping,", tuple):
            (axis,) = as_axes((given,), "partial")
            if monoid not in MONOIDS:
                raise LayoutError(
                    f'axis {write_axis(axis)} is unreduced by "{monoid}", which is not a monoid',
                    hint=monoid_hint(),
                )
            parts.setdefault(monoid, []).extend(use((axis,), f"is unreduced by {monoid}"))
        _check_disjoint(uses)
        spelled = [tuple(map(cells.axis, cut)) for cut in cuts]
        counts = tuple(prod(digit.radix for digit in cut) for cut in cuts)
        for n, (dim, count) in enumerate(zip(dims, counts)):
            _check_cut_points(n, dim, count)
        points = tuple(dim.cut_points for dim in dims)
        known = sorted(parts, key=list(MONOIDS).index)
        joined = [(digit, monoid) for monoid in known for digit in in_order(parts[monoid])]
        freeze(
            self,
            mesh=cells,
            dim_specs=tuple(
                DimSpec(a, d.is_open, d.priority, d.cut_points) for a, d in zip(spelled, dims)
            ),
            replicated_axes=tuple(map(cells.axis, in_order(copies))),
            partial=FrozenMap((cells.axis(digit), monoid) for digit, monoid in joined),
            grid=counts,
            cut_points=points if any(points) else None,
            digits=tuple(cuts),
            parts=tuple(sorted(joined, key=lambda each: (each[0].dim, -each[0].divisor))),
            _hash=hash((cells, *spelled, points)),  # planners look shardings up all the time
        )

    @classmethod
    def parse(cls, text: str | ShardingSpec, meshes: Meshes) -> ShardingSpec:
        """Read a sharding from its text form; `meshes` are those that it may name.

        A `ShardingSpec` on one of the meshes is returned as it is.

        >>> mesh = DeviceMesh.parse('@m = <["x"=8, "y"=2]>')
        >>> spec = ShardingSpec.parse('<@m, [{"x":(1)2, ?}p1, {}], replicated={"y"}>', mesh)
        >>> spec.grid, str(spec)
        ((2, 1), '<@m, [{"x":(1)2, ?}p1, {}], replicated={"y"}>')
        """
        given = [meshes] if isinstance(meshes, DeviceMesh | str) else meshes
        if isinstance(given, Mapping):
            known = {name: DeviceMesh.parse(mesh) for name, mesh in given.items()}
        else:
            check_list(given, "meshes")
            known = {mesh.name: mesh for mesh in map(DeviceMesh.parse, given)}
        if isinstance(text, ShardingSpec):
            if known.get(text.mesh.name) != text.mesh:
                raise LayoutError(f"{text} is on {text.mesh}", hint=_listed(known))
            return text
        name, dims, replicated, partial = read_sharding(text)
        if name not in known:
            raise LayoutError(f"mesh {write_symbol(name)} is not known", hint=_listed(known))
        try:
            return cls(known[name], [DimSpec(*dim) for dim in dims], replicated, partial)
        except LayoutError as error:
            error.add_note(f"while reading {text}")
            raise

    @property
    def ndim(self) -> int:
        """The number of dimensions of the array."""
        return len(self.dim_specs)

    @property
    def replica_count(self) -> int:
        """The number of cells that hold a copy of the same block (and part, where partial).

        >>> ShardingSpec(DeviceMesh("m", (2, 4), ("x", "y")), [DimSpec(["x"])]).replica_count
        4
        """
        return self.mesh.size // prod(self.grid) // prod(map(self.mesh.axis_size, self.partial))

    def blocks(self, shape: Iterable[int]) -> BlockGrid:
        """Return the blocks of an array of that shape.

        >>> spec = ShardingSpec(DeviceMesh("m", (4,), ("x",)), [DimSpec(["x"])])
        >>> spec.blocks((10,)).block_shape, spec.blocks((10,)).is_even
        ((3,), False)
        """
        return _block_grid(as_shape(shape, self.ndim), self.grid, self.cut_points)

    def canonical(self, shape: Iterable[int]) -> ShardingSpec:
        """Return the same sharding without cut points that are those of the rule for the shape.

        >>> spec = ShardingSpec(DeviceMesh("m", (2,), ("x",)), ['{"x"} at [4]'])
        >>> print(spec.canonical((8,)), spec.canonical((9,)))
        <@m, [{"x"}]> <@m, [{"x"} at [4]]>
        """
        if self.cut_points is None:
            return self
        edges = self.blocks(shape).edges
        dims = [
            dim if at is not None else DimSpec(dim.axes, dim.is_open, dim.priority)
            for dim, at in zip(self.dim_specs, edges)
        ]
        return ShardingSpec(self.mesh, dims, self.replicated_axes, self.partial)

    def region(self, shape: Iterable[int], coord: Cell) -> ZRange:
        """Return the box of an array of that shape that a cell holds.

        >>> spec = ShardingSpec(DeviceMesh("m", (4,), ("x",)), [DimSpec(["x"])])
        >>> print(*(spec.region((9,), cell) for cell in range(4)))
        [0:3] [3:6] [6:9] [9:9]
        """
        return self.blocks(shape).unchecked_box(self.block(coord))

    def block(self, cell: Cell) -> Point:
        """Return the number of the block that a cell holds, in each dimension.

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
        """Return the box of a block.

        >>> print(ShardingSpec(DeviceMesh("m", (4,), ("x",)), [DimSpec(["x"])]).box((10,), (3,)))
        [9:10]
        """
        return self.blocks(shape).box(as_point(block, "block", self.ndim))

    def boxes(self, shape: Iterable[int]) -> list[ZRange]:
        """Return the boxes of all blocks, each once, in row-major order: they tile the array.

        >>> spec = ShardingSpec(DeviceMesh("m", (2, 2), ("x", "y")), [DimSpec(["y"])])
        >>> print(*spec.boxes((8,)))
        [0:4] [4:8]
        """
        return self.blocks(shape).boxes()

    def regions(self, shape: Iterable[int]) -> list[ZRange]:
        """Return the boxes of all cells, in rank order.

        >>> spec = ShardingSpec(DeviceMesh("m", (2, 2), ("x", "y")), [DimSpec(["y"])])
        >>> print(*spec.regions((8,)))
        [0:4] [4:8] [0:4] [4:8]
        """
        chooser = _blocks_of_cells if self.mesh.size <= 4096 else _blocks_of_cells.__wrapped__
        boxes, choose = self.boxes(shape), chooser(self.mesh.shape, self.digits)
        return boxes if choose is None else [*choose(boxes)]

    def block_of(self, shape: Iterable[int], point: Iterable[int]) -> Point:
        """Return the block whose box contains a point of the array.

        >>> ShardingSpec(DeviceMesh("m", (4,), ("x",)), [DimSpec(["x"])]).block_of((10,), (9,))
        (3,)
        """
        return self.blocks(shape).block_of(point)

    def holders(self, block: Iterable[int]) -> Iterator[Point]:
        """Return the cells that hold a block, or a part of its value, in rank order.

        >>> spec = ShardingSpec(DeviceMesh("m", (2, 2), ("x", "y")), [DimSpec(["y"])])
        >>> list(spec.holders((1,)))
        [(0, 1), (1, 1)]
        """
        blocks = as_point(block, "block", self.ndim)
        for dim, (number, count) in enumerate(zip(blocks, self.grid)):
            if not 0 <= number < count:
                raise LayoutError(f"dimension {dim} has no block {number}: it is cut into {count}")
        numbered = zip(self.digits, blocks)
        fixed = [(d, number // d.stride % d.radix) for digits, number in numbered for d in digits]
        return matching(self.mesh.shape, fixed)

    def replicas(self, cell: Cell) -> Iterator[Point]:
        """Return the cells that hold the same values as this one, in rank order, with itself.

        >>> spec = ShardingSpec(DeviceMesh("m", (2, 2), ("x", "y")), [DimSpec(["y"])])
        >>> list(spec.replicas((0, 1)))
        [(0, 1), (1, 1)]
        """
        coord = self.mesh.coord(cell)
        digits = (*chain.from_iterable(self.digits), *(digit for digit, _ in self.parts))
        return matching(self.mesh.shape, [(digit, digit.of(coord)) for digit in digits])

    def shard_shape(self, shape: Iterable[int]) -> Point:
        """Return the shape of a full shard; shards at the edge may be smaller.

        >>> ShardingSpec(DeviceMesh("m", (4,), ("x",)), [DimSpec(["x"])]).shard_shape((10,))
        (3,)
        """
        return self.blocks(shape).block_shape

    def is_even(self, shape: Iterable[int]) -> bool:
        """Return whether all shards of an array of that shape have the same shape.

        >>> ShardingSpec(DeviceMesh("m", (4,), ("x",)), [DimSpec(["x"])]).is_even((10,))
        False
        """
        return self.blocks(shape).is_even

    def drawing(self, shape: Iterable[int] | None = None) -> Drawing:
        """Draw the devices that hold each box of an array of that shape (or of the blocks)."""
        return draw_sharding(self, None if shape is None else as_shape(shape, self.ndim))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        # Rebuilt when unpickled: the hash of a string differs between processes.
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


def refuse_cut_points(spec: ShardingSpec, target: str) -> None:
    """Raise if a sharding has cut points, which are Weft's own and which the target has not."""
    for number, dim in enumerate(spec.dim_specs):
        if dim.cut_points is not None:
            raise LayoutError(
                f"dimension {number} is cut at {list(dim.cut_points)}, and {target} has blocks of "
                f"one size only: {spec}",
                hint="drop the cut points, or run the plan with Weft",
            )


Meshes: TypeAlias = (
    DeviceMesh | str | Iterable[DeviceMesh | str] | Mapping[str, DeviceMesh] | Mapping[str, str]
)
"""Meshes, each an object or text; a mapping gives their names."""


def _listed(meshes: Iterable[str]) -> str:
    return f"known are {', '.join(map(write_symbol, meshes)) or 'none'}"


def _as_dims(dim_specs: Iterable[DimSpec | str]) -> tuple[DimSpec, ...]:
    try:
        check_list(dim_specs, "dim_specs")
        return tuple(map(DimSpec.parse, dim_specs))
    except WeftError as error:
        error.add_note("hint: write [DimSpec([...]), ...], one for each dimension")
        raise


def join_digits(digits: Iterable[Digit]) -> tuple[Digit, ...]:
    """Return digits as one number, major to minor: neighbours on an axis joined, strides set.

    >>> join_digits([Digit(0, 4, 2, 1), Digit(0, 1, 4, 1), Digit(1, 1, 3, 1)])
    (Digit(dim=0, divisor=1, radix=8, stride=3), Digit(dim=1, divisor=1, radix=3, stride=1))
    """
    joined: list[Digit] = []
    for digit in digits:
        last = joined[-1] if joined else None
        if last and last.dim == digit.dim and last.divisor == digit.divisor * digit.radix:
            joined[-1] = digit._replace(radix=last.radix * digit.radix)
        else:
            joined.append(digit)
    weight = 1
    for n, digit in reversed(list(enumerate(joined))):
        joined[n] = digit._replace(stride=weight)
        weight *= digit.radix
    return tuple(joined)


def _check_disjoint(uses: Iterable[tuple[Digit, Axis, str]]) -> None:
    """Raise for an axis that is used twice, or for parts of one that overlap.

    Each use is a digit, its axis and its role: `cuts dimension 0`.
    """
    seen: dict[int, list[tuple[Digit, Axis, str]]] = {}
    for digit, axis, role in uses:
        for other, other_axis, other_role in seen.setdefault(digit.dim, []):
            minor, major = sorted((digit, other), key=lambda each: each.divisor)
            if digit == other:
                both = f"{role} twice" if role == other_role else f"{other_role} and {role}"
                raise LayoutError(f"axis {write_axis(axis)} {both}")
            if major.divisor % (minor.divisor * minor.radix):
                wrong = "overlap" if major.divisor < minor.divisor * minor.radix else "do not nest"
                raise LayoutError(
                    f"axes {write_axis(other_axis)} and {write_axis(axis)} {wrong}: "
                    f"the first {other_role}, the second {role}"
                )
        seen[digit.dim].append((digit, axis, role))


def _check_cut_points(number: int, dim: DimSpec, count: int) -> None:
    if dim.cut_points is not None and len(dim.cut_points) != count - 1:
        raise LayoutError(
            f"dimension {number} has {counted(count, 'block')} and is cut at "
            f"{counted(len(dim.cut_points), 'point')}: {dim}",
            hint=f"give {counted(count - 1, 'cut point')}, one between each two blocks",
        )


@lru_cache(maxsize=4096)
def _block_grid(
    shape: Point, counts: Point, cut_points: tuple[Point | None, ...] | None
) -> BlockGrid:
    """Return what `BlockGrid.cut` does, without checks of what both have passed."""
    if cut_points is not None:
        return BlockGrid.cut(shape, counts, cut_points)
    return BlockGrid(shape, counts, tuple(-(-n // count) for n, count in zip(shape, counts)))


@lru_cache(maxsize=64)
def _blocks_of_cells(
    shape: Point, digits: tuple[tuple[Digit, ...], ...]
) -> Callable[[list[ZRange]], tuple[ZRange, ...]] | None:
    """Return the function that takes every cell's block from all of them; None if it takes all."""
    flat, weight = list[Digit](), 1
    for digit in reversed([digit for each in digits for digit in each]):
        flat.append(digit._replace(stride=weight))
        weight *= digit.radix
    numbers = weigh(shape, flat)
    return None if numbers == list(range(len(numbers))) else itemgetter(*numbers)

"""`Placed`: an application whose index space lies on a mesh, and what follows for its arrays."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod

from weft.draw import Drawing, Drawn
from weft.errors import LayoutError
from weft.lang import Row, Signature
from weft.lang.field import MOST
from weft.layout import Axis, DeviceMesh, DimSpec, ShardingSpec
from weft.layout.mesh import Cell
from weft.layout.sharding import join_digits
from weft.plan.picture import draw_placed
from weft.program.layout_rule import Cells, Layout, Parts, join_parts, same_boxes
from weft.space import Projection, ZRange
from weft.values import FrozenMap, Point

Placement = Mapping[str, Sequence[Axis] | DimSpec]
"""For an index dimension the axes that cut it, major to minor; a `DimSpec` may also say where."""


@dataclass(frozen=True)
class Placed(Drawn):
    """An application whose index space is sharded, and how its operands and results then lie.

    >>> mesh = DeviceMesh("m", (2, 4), ("dp", "tp"))
    >>> line = Signature.of("m k, k n -> m n  sum: k", [(8, 16), (16, 32)])
    >>> placed = place(mesh, line, {"m": ["dp"], "k": ["tp"]})
    >>> print(placed.boxes[6], placed.operands[1], placed.results[0])
    [4:8, 0:32, 8:12] <@m, [{"tp"}, {}]> <@m, [{"dp"}, {}], unreduced={"tp"}>
    """

    mesh: DeviceMesh
    signature: Signature
    placement: Mapping[str, tuple[Axis, ...]]
    index: ShardingSpec
    """The sharding of the index space."""
    operands: tuple[ShardingSpec | None, ...] = field(compare=False)
    """The sharding under which cells have what they need; None where there is none, as with
    halos."""
    partials: tuple[Mapping[Axis, str], ...]
    """For each operand the axes over which it is partial, or counts once."""
    results: tuple[ShardingSpec, ...]

    def drawing(self, *, cell: Cell | None = None) -> Drawing:
        """Draw the index boxes of all cells, or of one, and their images in all arrays."""
        return draw_placed(self, cell)

    @property
    def cuts(self) -> Mapping[str, DimSpec]:
        """For each index dimension that is cut, the axes that cut it, and where."""
        named = zip(self.signature.sizes, self.index.dim_specs)
        return {name: dim for name, dim in named if dim.axes}

    @cached_property
    def boxes(self) -> tuple[ZRange, ...]:
        """The box of the index space that each cell computes, in rank order."""
        return tuple(self.index.regions(self.signature.sizes.values()))

    @cached_property
    def needs(self) -> tuple[tuple[ZRange, ...], ...]:
        """For each operand the box that each cell needs, in rank order."""
        return tuple(
            tuple(
                self.needed(number).boxes()
                if spec is None
                else spec.regions(self.signature.operand_shapes[number])
            )
            for number, spec in enumerate(self.operands)
        )

    def needed(self, number: int) -> Layout:
        """Return which box of an operand each cell needs, as the image of its index box."""
        line = self.signature
        sizes = tuple(line.sizes.values())
        return _image(self.index, sizes, line.operand_shapes[number], line.operands[number])

    def operand_layout(self, number: int) -> Layout:
        """Return the layout in which an operand is read, without its parts."""
        spec = self.operands[number]
        if spec is None:
            return self.needed(number)
        return layout_of(spec, self.signature.operand_shapes[number]).with_parts(())

    def operand_parts(self, number: int, besides: Collection[Axis] = ()) -> Parts:
        """Return the parts in which an operand is read, besides those over some axes."""
        partial = self.partials[number].items()
        return join_parts((self.mesh.digit(a), monoid) for a, monoid in partial if a not in besides)


def layout_of(spec: ShardingSpec, shape: Iterable[int]) -> Layout:
    """Return the layout that a sharding gives an array of that shape."""
    return _layout_of(spec, tuple(shape))


@lru_cache(maxsize=1 << 14)
def _layout_of(spec: ShardingSpec, sizes: Point) -> Layout:
    return Layout(
        Cells(spec.mesh.shape, spec.mesh.device_ids),
        sizes,
        spec.blocks(sizes),
        tuple([join_digits([digit for digit in cut if digit.radix > 1]) for cut in spec.digits]),
        join_parts(spec.parts),
    )


@lru_cache(maxsize=1 << 14)
def _image(index: ShardingSpec, sizes: Point, shape: Point, image: Projection) -> Layout:
    """Return the boxes of an array that the boxes of an index space are mapped to."""
    blocks = layout_of(index, sizes)
    return Layout(blocks.cells, shape, blocks.grid, blocks.cuts, (), image)


def place(
    mesh: DeviceMesh,
    signature: Signature,
    placement: Placement,
    kept: Mapping[Axis, tuple[str, Sequence[int]]] | None = None,
) -> Placed:
    """Place the index space of an application on a mesh.

    `kept` says over which axes which operands are partial by a monoid and stay so in the results.
    """
    names, kept = list(signature.sizes), kept or {}
    given = [placement.get(name, ()) for name in names]
    cuts = FrozenMap((name, tuple(axes_of(each))) for name, each in zip(names, given))
    if mesh.size > MOST:
        raise LayoutError(f"{mesh} has {mesh.size} cells; at most {MOST} are planned")
    _check(signature, placement, cuts, kept)
    points = tuple(each.cut_points if isinstance(each, DimSpec) else None for each in given)
    index = _spec(mesh, tuple(cuts[name] for name in names), (), points)
    index = index.canonical(signature.sizes.values())
    if len(signature.notation.results) > 1:
        _check_copies(signature, index)
    line = signature.notation
    reduced = {axis: line.reduced[name] for name in signature.reduced for axis in cuts[name]}
    partials = _partials(line.once, len(line.operands), reduced, kept)
    made = reduced | {axis: monoid for axis, (monoid, _) in kept.items()}
    arrays = _Arrays(mesh, signature, cuts, index)
    operands = [arrays.operand(number, parts) for number, parts in enumerate(partials)]
    results = []
    for number in range(len(line.results)):
        spec = arrays.result(number, made)
        if spec is None:
            raise LayoutError(
                f"result {number} does not lie in blocks of one size where "
                f"{_text(dict(zip(names, index.dim_specs)))}"
            )
        results.append(spec)
    return Placed(mesh, signature, cuts, index, tuple(operands), partials, tuple(results))


@lru_cache(maxsize=4096)
def _spec(
    mesh: DeviceMesh,
    axes: tuple[tuple[Axis, ...], ...],
    partial: tuple[tuple[Axis, str], ...],
    points: tuple[Point | None, ...],
) -> ShardingSpec:
    """Return a sharding, made once."""
    dims = [DimSpec(each, cut_points=at) for each, at in zip(axes, points)]
    return ShardingSpec(mesh, dims, (), partial)


def fit(
    mesh: DeviceMesh,
    signature: Signature,
    placement: Placement,
    kept: Mapping[Axis, tuple[str, Sequence[int]]] | None = None,
) -> Placed:
    """Place an application, with as many of the cuts as leave its results in equal blocks.

    >>> mesh = DeviceMesh("m", (3,), ("x",))
    >>> line = Signature.of("2*i+j -> i j", [(8,)], sizes={"i": 4, "j": 2})
    >>> dict(fit(mesh, line, {"j": ["x"], "i": ["x"][:0]}).placement)
    {'i': (), 'j': ('x',)}
    """
    fixed = signature.fixed
    free = {name: axes for name, axes in placement.items() if axes_of(axes) and name not in fixed}
    fewer = [{name: axes for name, axes in free.items() if name != gone} for gone in free]
    for attempt in (free, *fewer):
        try:
            return place(mesh, signature, attempt, kept)
        except LayoutError:
            continue
    return place(mesh, signature, {}, kept)


def axes_of(given: Sequence[Axis] | DimSpec) -> Sequence[Axis]:
    """Return the axes of one index dimension of a placement."""
    return given.axes if isinstance(given, DimSpec) else given


def _check(
    signature: Signature,
    placement: Placement,
    cuts: Mapping[str, Sequence[Axis]],
    kept: Mapping[Axis, tuple[str, Sequence[int]]],
) -> None:
    for name in placement:
        if name not in signature.sizes:
            raise LayoutError(f"there is no index dimension '{name}' in {signature}")
    for name in signature.fixed:
        if cuts[name]:
            cut = _text({name: DimSpec(cuts[name])})
            raise LayoutError(f"{cut}, and {signature} needs it whole")
    monoids = {signature.notation.reduced[name] for name in signature.reduced if cuts[name]}
    monoids |= {monoid for monoid, _ in kept.values()}
    if len(monoids) > 1:
        raise LayoutError(f"parts by {' and '.join(sorted(monoids))} at once in {signature}")


def _check_copies(signature: Signature, index: ShardingSpec) -> None:
    """Refuse a cell without any index of a dimension that a result depends on and does not have.

    Every cell has a copy of such a result, and this one would have nothing to make it of.
    """
    line, names = signature.notation, list(signature.sizes)
    reading = [{name for row in rows for name in row.dims} for rows in line.operands]
    grid = index.blocks(signature.sizes.values())
    empty = {
        name
        for dim, name in enumerate(names)
        if signature.sizes[name] and any(not each.extent for each in grid.classes(dim))
    } - set(line.reduced)
    for number, rows in enumerate(line.results):
        own = {name for row in rows for name in row.dims}
        seen = set(own)
        while more := [each for each in reading if each & seen and not each <= seen]:
            seen = seen.union(*more)
        for name in sorted(empty & seen - own):
            raise LayoutError(
                f"result {number} cannot be computed on a cell whose part of '{name}' is empty: "
                f"{signature}"
            )


def _text(cuts: Mapping[str, DimSpec]) -> str:
    return ", ".join(f"'{name}' is cut by {dim}" for name, dim in cuts.items() if dim.axes)


def _partials(
    once: frozenset[int],
    count: int,
    reduced: Mapping[Axis, str],
    kept: Mapping[Axis, tuple[str, Sequence[int]]],
) -> tuple[Mapping[Axis, str], ...]:
    """Return the axes over which each operand is partial: it is so already, or counts once."""
    return tuple(
        FrozenMap(
            [
                *(reduced.items() if number in once else ()),
                *((axis, monoid) for axis, (monoid, group) in kept.items() if number in group),
            ]
        )
        for number in range(count)
    )


def kept_of(placed: Placed) -> dict[Axis, tuple[str, tuple[int, ...]]]:
    """Return the operands that stay partial, as `place` was given them.

    >>> mesh = DeviceMesh("m", (2,), ("x",))
    >>> line = Signature.of("i, i -> i", [(8,), (8,)])
    >>> kept_of(place(mesh, line, {}, {"x": ("sum", (0, 1))}))
    {'x': ('sum', (0, 1))}
    """
    line = placed.signature
    own = {axis for name in line.reduced for axis in placed.placement[name]}
    found: dict[Axis, tuple[str, tuple[int, ...]]] = {}
    for number, parts in enumerate(placed.partials):
        for axis, monoid in parts.items():
            if axis not in own:
                found[axis] = monoid, (*found.get(axis, ("", ()))[1], number)
    return found


class _Arrays:
    """The shardings of operands and results that follow from cutting an index space."""

    def __init__(
        self,
        mesh: DeviceMesh,
        signature: Signature,
        cuts: Mapping[str, tuple[Axis, ...]],
        index: ShardingSpec,
    ) -> None:
        self.mesh, self.signature, self.cuts = mesh, signature, cuts
        self.index = index
        self.points = dict(zip(signature.sizes, (dim.cut_points for dim in index.dim_specs)))

    def operand(self, number: int, partial: Mapping[Axis, str]) -> ShardingSpec | None:
        """Return the sharding under which cells have what they need, if there is one."""
        line = self.signature
        return self._found(
            line.notation.operands[number],
            line.operand_shapes[number],
            line.operands[number],
            partial,
        )

    def result(self, number: int, partial: Mapping[Axis, str]) -> ShardingSpec | None:
        """Return the sharding of a result, if there is one."""
        line = self.signature
        return self._found(
            line.notation.results[number], line.result_shapes[number], line.results[number], partial
        )

    def _found(
        self, rows: Sequence[Row], shape: Point, image: Projection, partial: Mapping[Axis, str]
    ) -> ShardingSpec | None:
        axes = tuple(self._axes(row) for row in rows)
        used = [axis for of_dim in axes for axis in of_dim]
        if len(used) != len(set(used)):
            return None
        sizes, parts = self.signature.sizes, tuple(partial.items())
        if all(row.plain and sizes[row.plain] == n for row, n in zip(rows, shape)):
            at = [None if row.plain is None else self.points[row.plain] for row in rows]
            return _spec(self.mesh, axes, parts, tuple(at))
        boxes = _image(self.index, tuple(sizes.values()), shape, image)
        spec = _spec(self.mesh, axes, parts, (None,) * len(axes))
        if self.index.cut_points is not None:
            points = tuple(_cut_points(spec, boxes, dim) for dim in range(len(shape)))
            spec = _spec(self.mesh, axes, parts, points).canonical(shape)
        return spec if same_boxes(boxes, layout_of(spec, shape)) else None

    def _axes(self, row: Row) -> tuple[Axis, ...]:
        """Return the axes that cut a dimension: those of its terms, major to minor.

        A digit that is cut in part hides those below it.
        """
        if row.plain:
            return self.cuts[row.plain]
        found: tuple[Axis, ...] = ()
        for name, _ in sorted(row.terms, key=lambda term: -abs(term[1])):
            found += self.cuts[name]
            if prod(map(self.mesh.axis_size, self.cuts[name])) < self.signature.sizes[name]:
                break
        return found


def _cut_points(spec: ShardingSpec, boxes: Layout, dim: int) -> Point | None:
    """Return where the boxes of cells cut a dimension by a sharding's axes; None if they do not."""
    if spec.grid[dim] < 2:
        return None
    rule, n, ends = boxes.rule(dim), boxes.shape[dim], [0]
    for block in range(spec.grid[dim]):
        at = [0] * len(boxes.cells.shape)
        for digit in spec.digits[dim]:
            at[digit.dim] += block // digit.stride % digit.radix * digit.divisor
        low, high = rule.spans[rule.number(at)]
        if low < high and low != ends[-1]:
            return None
        ends.append(high if low < high else ends[-1])
    return tuple(ends[1:-1]) if ends[-1] == n else None

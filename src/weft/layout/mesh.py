"""`DeviceMesh`: a named N-D grid of cells with named axes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import SupportsIndex, TypeAlias

from weft.draw import Drawing, Drawn
from weft.errors import LayoutError
from weft.layout.picture import draw_mesh
from weft.layout.shardy_text import (
    SUB_AXIS,
    Axis,
    SubAxis,
    as_axes,
    read_mesh,
    write_axis,
    write_symbol,
)
from weft.space import Digit
from weft.values import Point, as_count, as_point, as_tuple, freeze, points

MOST_AXES = 4096
"""The most axes of a mesh."""
MOST_CELLS = 1 << 48
"""The most cells of a mesh; plans and graphs that are read from files have far fewer."""

Cell: TypeAlias = SupportsIndex | Sequence[int]
"""A cell of a mesh: its coordinate, or its linear rank (row-major)."""


@dataclass(frozen=True, slots=True, init=False)
class DeviceMesh(Drawn):
    """A named N-D grid of cells with named axes; a cell is a device, worker, chip or file.

    `device_ids` gives the device of each cell in rank order; None: cell k is device k.

    >>> mesh = DeviceMesh("cluster", (2, 4), ("dp", "tp"))
    >>> print(mesh, mesh.size, mesh.coord(6), mesh.rank((1, 2)))
    @cluster = <["dp"=2, "tp"=4]> 8 (1, 2) 6
    """

    name: str
    shape: Point
    axis_names: tuple[str, ...]
    device_ids: Point | None

    def __init__(
        self,
        name: str,
        shape: Iterable[int],
        axis_names: Iterable[str],
        device_ids: Iterable[int] | None = None,
    ) -> None:
        if not isinstance(name, str):
            raise LayoutError(f"expected the name of a mesh, got {name!r}")
        what = f"mesh {write_symbol(name)}"
        sizes = as_point(shape, f"shape of {what}")
        axes = as_tuple(axis_names, f"axis_names of {what}", str)
        if len(sizes) != len(axes):
            raise LayoutError(f"{what} of shape {sizes} needs as many axis names: {axis_names!r}")
        if len(axes) > MOST_AXES:
            raise LayoutError(f"{what} has {len(axes)} axes; at most {MOST_AXES}")
        for text in (name, *axes):
            if not text or not text.isprintable() or {*'"\\'} & {*text} or SUB_AXIS.fullmatch(text):
                raise LayoutError(f"{text!r} cannot be a name: it could not be read back from text")
        seen = set[str]()
        for axis, size in zip(axes, sizes):
            if axis in seen:
                raise LayoutError(f'{what} has two axes named "{axis}"')
            seen.add(axis)
            if size < 1:
                raise LayoutError(f'axis "{axis}" of {what} has size {size}; at least 1')
        if prod(sizes) > MOST_CELLS:
            raise LayoutError(f"{what} has more than {MOST_CELLS} cells")
        ids = None if device_ids is None else _device_order(what, sizes, device_ids)
        freeze(self, name=name, shape=sizes, axis_names=axes, device_ids=ids)

    @classmethod
    def parse(cls, text: str | DeviceMesh) -> DeviceMesh:
        """Read a mesh from its text form; a `DeviceMesh` is returned as it is.

        >>> DeviceMesh.parse('@m = <["x"=2], device_ids=[1, 0]>').device(0)
        1
        """
        if isinstance(text, DeviceMesh):
            return text
        if not isinstance(text, str):
            raise LayoutError(f"expected a DeviceMesh or its text, got {text!r}")
        name, axes, device_ids = read_mesh(text)
        return cls(name, [size for _, size in axes], [axis for axis, _ in axes], device_ids)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of cells."""
        return prod(self.shape)

    def axis_size(self, axis: Axis) -> int:
        """Return the size of an axis or of part of one.

        >>> DeviceMesh("m", (8,), ("x",)).axis_size(SubAxis("x", 1, 4))
        4
        """
        return self.digit(axis).radix

    def digit(self, axis: Axis, role: str = "") -> Digit:
        """Return the digit of a cell's coordinate that an axis is; errors mention its `role`.

        >>> DeviceMesh("m", (2, 8), ("x", "y")).digit(SubAxis("y", 2, 2))
        Digit(dim=1, divisor=2, radix=2, stride=1)
        """
        (axis,) = as_axes((axis,), "axis")
        name, doing = axis if isinstance(axis, str) else axis.name, f" {role}, but" if role else ""
        if name not in self.axis_names:
            raise LayoutError(
                f'axis "{name}"{doing} is not an axis of mesh {write_symbol(self.name)}',
                hint=f"the mesh is {self}",
            )
        dim = self.axis_names.index(name)
        whole = self.shape[dim]
        if isinstance(axis, str):
            return Digit(dim, 1, whole, 1)
        part = axis.before * axis.size
        if whole % part:
            raise LayoutError(
                f'sub-axis {axis}{doing} does not divide "{name}"={whole}: {axis.before} x '
                f"{axis.size} = {part} and {whole} = {part} x {whole // part} + {whole % part}"
            )
        return Digit(dim, whole // part, axis.size, 1)

    def axis(self, digit: Digit) -> Axis:
        """Return the axis, or the part of one, that a digit is: the inverse of `digit`."""
        name, whole = self.axis_names[digit.dim], self.shape[digit.dim]
        before = whole // (digit.divisor * digit.radix)
        return name if digit.radix == whole else SubAxis(name, before, digit.radix)

    def coord(self, cell: Cell) -> Point:
        """Return the coordinate of a cell given by its rank; a coordinate is checked.

        >>> DeviceMesh("m", (2, 4), ("x", "y")).coord(5)
        (1, 1)
        """
        if isinstance(cell, Iterable):
            at = as_point(cell, "cell", len(self.shape))
            for axis, x, size in zip(self.axis_names, at, self.shape):
                if not 0 <= x < size:
                    raise LayoutError(f'no cell {at}: axis "{axis}"={size} has no coordinate {x}')
            return at
        rank, digits = as_count(cell, "cell"), []
        if rank >= self.size:
            raise LayoutError(f"no cell {rank} in mesh {self}, which has {self.size} cells")
        for size in reversed(self.shape):
            rank, digit = divmod(rank, size)
            digits.append(digit)
        return tuple(reversed(digits))

    def rank(self, coord: Sequence[int]) -> int:
        """Return the linear rank of the cell at a coordinate, the last axis running fastest.

        >>> DeviceMesh("m", (2, 4), ("x", "y")).rank((1, 1))
        5
        """
        rank = 0
        for x, size in zip(self.coord(coord), self.shape):
            rank = rank * size + x
        return rank

    def device(self, cell: Cell) -> int:
        """Return the device of a cell.

        >>> DeviceMesh("m", (3,), ("x",), device_ids=(2, 1, 0)).device((0,))
        2
        """
        rank = self.rank(self.coord(cell))
        return rank if self.device_ids is None else self.device_ids[rank]

    def cells(self) -> Iterator[Point]:
        """Return the coordinates of all cells in rank order.

        >>> list(DeviceMesh("m", (2, 2), ("x", "y")).cells())
        [(0, 0), (0, 1), (1, 0), (1, 1)]
        """
        return points((0,) * self.ndim, self.shape)

    def drawing(self) -> Drawing:
        """Draw the cells with their devices."""
        return draw_mesh(self)

    def __str__(self) -> str:
        axes = ", ".join(map("{}={}".format, map(write_axis, self.axis_names), self.shape))
        ids = "" if self.device_ids is None else f", device_ids={list(self.device_ids)}"
        return f"{write_symbol(self.name)} = <[{axes}]{ids}>"


def _device_order(what: str, shape: Point, device_ids: Iterable[int]) -> Point | None:
    """Return the devices, checked; None for the natural order, so that it has one spelling.

    A mesh without axes that names its device differs from one that does not.
    """
    size = prod(shape)
    ids = as_point(device_ids, f"device_ids of {what}")
    if not len(ids) == len(set(ids)) == size or min(ids) < 0:
        raise LayoutError(
            f"{what} of {size} cells needs {size} different device ids, none negative: "
            f"{len(ids)} are given, {len(set(ids))} different, the least is {min(ids, default=0)}"
        )
    return None if shape and ids == tuple(range(size)) else ids

"""The memory of one chip: which page of a tensor lies in which bank or core, at which offset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import combinations, product
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

from weft.errors import LayoutError, WeftError
from weft.space import BlockGrid
from weft.ttmesh.buffer import Extent, ShardOrientation
from weft.ttmesh.formats import TILE, DataType
from weft.values import Point, as_count, as_point, as_shape, as_tuple, freeze


class Core(NamedTuple):
    """A core by its column `x` and its row `y`."""

    x: int
    y: int


@dataclass(frozen=True, slots=True, init=False)
class CoreRange:
    """A rectangle of cores, from `first` to `last` inclusive.

    >>> CoreRange(Core(0, 0), Core(3, 1)).columns
    4
    """

    first: Core
    last: Core

    def __init__(self, first: Iterable[int], last: Iterable[int]) -> None:
        low, high = (Core(*(as_count(c, "core") for c in corner)) for corner in (first, last))
        for name, start, stop in zip("xy", low, high):
            if stop < start:
                raise WeftError(f"a range of cores ends at {name}={stop}, before {name}={start}")
        freeze(self, first=low, last=high)

    @property
    def columns(self) -> int:
        """The number of columns of cores."""
        return self.last.x - self.first.x + 1

    @property
    def rows(self) -> int:
        """The number of rows of cores."""
        return self.last.y - self.first.y + 1

    def cores(self, orientation: ShardOrientation) -> list[Core]:
        """Return the cores, row by row or column by column."""
        xs = range(self.first.x, self.last.x + 1)
        ys = range(self.first.y, self.last.y + 1)
        if orientation is ShardOrientation.ROW_MAJOR:
            return [Core(x, y) for y, x in product(ys, xs)]
        return [Core(x, y) for x, y in product(xs, ys)]

    def __str__(self) -> str:
        return f"({self.first.x}, {self.first.y})-({self.last.x}, {self.last.y})"


@dataclass(frozen=True, slots=True, init=False)
class CoreGrid:
    """Ranges of cores that do not overlap, one after another.

    >>> grid = CoreGrid([CoreRange((0, 0), (1, 1)), CoreRange((4, 0), (4, 0))])
    >>> [tuple(core) for core in grid.cores(ShardOrientation.COL_MAJOR)]
    [(0, 0), (0, 1), (1, 0), (1, 1), (4, 0)]
    """

    ranges: tuple[CoreRange, ...]

    def __init__(self, ranges: Iterable[CoreRange]) -> None:
        given = as_tuple(ranges, "ranges", CoreRange)
        if not given:
            raise WeftError("a grid needs at least one range of cores")
        for one, two in combinations(given, 2):
            if all(
                a <= d and c <= b for a, b, c, d in zip(one.first, one.last, two.first, two.last)
            ):
                raise WeftError(f"ranges of cores {one} and {two} overlap")
        freeze(self, ranges=given)

    @classmethod
    def of(cls, columns: int, rows: int) -> CoreGrid:
        """Return the rectangle of that size at the origin.

        >>> len(CoreGrid.of(columns=8, rows=7))
        56
        """
        return cls([CoreRange((0, 0), (columns - 1, rows - 1))])

    def cores(self, orientation: ShardOrientation = ShardOrientation.ROW_MAJOR) -> tuple[Core, ...]:
        """Return all cores, range by range."""
        return tuple(core for each in self.ranges for core in each.cores(orientation))

    def __len__(self) -> int:
        return sum(each.rows * each.columns for each in self.ranges)

    def __str__(self) -> str:
        return " + ".join(map(str, self.ranges))


class Layout(Enum):
    """The kind of a page: a row of elements, or a tile of 32 x 32."""

    ROW_MAJOR = "ROW_MAJOR"
    TILE = "TILE"


class Scheme(Enum):
    """How a matrix is cut over cores: into bands of rows, of columns, or into blocks."""

    HEIGHT = "HEIGHT_SHARDED"
    WIDTH = "WIDTH_SHARDED"
    BLOCK = "BLOCK_SHARDED"


@dataclass(frozen=True, slots=True, init=False)
class Interleaved:
    """Page after page, each to the next bank."""

    banks: int

    def __init__(self, banks: int) -> None:
        if as_count(banks, "banks") < 1:
            raise WeftError("interleaved memory needs at least one bank")
        freeze(self, banks=int(banks))


@dataclass(frozen=True, slots=True)
class Sharded:
    """A shard for each core; the tensor is one matrix, its leading dimensions in the height."""

    scheme: Scheme
    shard: Extent
    grid: CoreGrid
    orientation: ShardOrientation = ShardOrientation.ROW_MAJOR


@dataclass(frozen=True, slots=True, init=False)
class NdSharded:
    """Shards of any rank, in order, each to the next core, over and over.

    A shard of lower rank than the tensor's counts the tensor's leading dimensions as one.
    """

    shard: Point
    grid: CoreGrid
    orientation: ShardOrientation

    def __init__(
        self,
        shard: Iterable[int],
        grid: CoreGrid,
        orientation: ShardOrientation = ShardOrientation.ROW_MAJOR,
    ) -> None:
        freeze(self, shard=as_point(shard, "shard"), grid=grid, orientation=orientation)


Memory: TypeAlias = Interleaved | Sharded | NdSharded
Bank: TypeAlias = int | Core
"""A bank by its number, or the core whose memory it is."""


class PagePlace(NamedTuple):
    """The address of a page: its bank, and the bytes before it there."""

    bank: Bank
    offset: int


@dataclass(frozen=True, slots=True)
class PageMap:
    """How pages are assigned to banks: shards of pages, numbered in order, go round the banks."""

    grid: BlockGrid
    """The pages of the tensor, cut into shards."""
    slots: Point
    """The grid by which shards are numbered: that of the shards, or of the cores."""
    banks: tuple[Bank, ...]

    @property
    def shard_pages(self) -> int:
        """The number of pages that a shard has room for."""
        return prod(self.grid.block_shape)

    @property
    def rounds(self) -> int:
        """The number of shards in the fullest bank."""
        return BlockGrid.blocks((self.grid.size,), (len(self.banks),)).size


@dataclass(frozen=True, slots=True, init=False)
class ChipLayout:
    """A tensor in the memory of one chip.

    >>> memory = Sharded(Scheme.HEIGHT, Extent(height=32, width=64), CoreGrid.of(4, 1))
    >>> layout = ChipLayout((1, 1, 128, 64), DataType.BFLOAT16, Layout.TILE, memory)
    >>> layout.page_count, layout.page_bytes, layout.place(5)
    (8, 2048, PagePlace(bank=Core(x=2, y=0), offset=2048))
    >>> layout.page_at(Core(2, 0), 2048)
    5
    """

    shape: Point
    kind: DataType
    layout: Layout
    memory: Memory
    alignment: int

    def __init__(
        self,
        shape: Iterable[int],
        kind: DataType,
        layout: Layout,
        memory: Memory,
        alignment: int = 32,
    ) -> None:
        sizes = as_shape(shape)
        if kind.is_block and layout is not Layout.TILE:
            raise LayoutError(f"{kind.value} shares exponents within tiles: its layout is TILE")
        if as_count(alignment, "alignment") < 1:
            raise WeftError("alignment is a number of bytes, 1 or more")
        freeze(self, shape=sizes, kind=kind, layout=layout, memory=memory, alignment=int(alignment))
        page_map(self)

    @property
    def page_shape(self) -> Extent:
        """The elements of a page."""
        if self.layout is Layout.TILE:
            return Extent(height=TILE, width=TILE)
        match self.memory:
            case Interleaved():
                return Extent(height=1, width=self.shape[-1] if self.shape else 1)
            case Sharded(shard=shard):
                return Extent(height=1, width=shard.width)
            case NdSharded(shard=sides):
                return Extent(height=1, width=sides[-1] if sides else 1)

    @property
    def page_bytes(self) -> int:
        """The bytes of a page."""
        if self.layout is Layout.TILE:
            return self.kind.tile_bytes
        return self.page_shape.width * self.kind.storage.itemsize

    @property
    def aligned_page_bytes(self) -> int:
        """The bytes from one page to the next in a bank."""
        return self.page_bytes + -self.page_bytes % self.alignment

    @property
    def page_count(self) -> int:
        """The number of pages of the tensor."""
        return page_grid(self).size

    @property
    def banks(self) -> tuple[Bank, ...]:
        """The banks, in the order in which they are used."""
        return page_map(self).banks

    @property
    def bank_bytes(self) -> int:
        """The bytes reserved in each bank: those of the fullest, unused pages included."""
        pages = page_map(self)
        return pages.rounds * pages.shard_pages * self.aligned_page_bytes

    def place(self, page: int) -> PagePlace:
        """Return the bank of a page, and its offset there."""
        pages = page_map(self)
        if as_count(page, "page") >= self.page_count:
            raise WeftError(f"no page {page}: {self} has {self.page_count}")
        at = np.unravel_index(page, pages.grid.shape)
        shard, inside = zip(*map(divmod, at, pages.grid.block_shape))
        turn, bank = divmod(_ravel(shard, pages.slots), len(pages.banks))
        number = turn * pages.shard_pages + _ravel(inside, pages.grid.block_shape)
        return PagePlace(pages.banks[bank], number * self.aligned_page_bytes)

    def page_at(self, bank: Bank, offset: int) -> int | None:
        """Return the page in which a byte of a bank lies; None if no page of the tensor does."""
        pages = page_map(self)
        if bank not in pages.banks:
            name = f"core ({bank.x}, {bank.y})" if isinstance(bank, Core) else f"bank {bank}"
            raise WeftError(f"{name} holds nothing of {self}")
        number = as_count(offset, "offset") // self.aligned_page_bytes
        turn, inside = divmod(number, pages.shard_pages)
        shard = turn * len(pages.banks) + pages.banks.index(bank)
        if shard >= prod(pages.slots):
            return None
        within = np.unravel_index(inside, pages.grid.block_shape)
        corner = np.multiply(np.unravel_index(shard, pages.slots), pages.grid.block_shape)
        at = corner + within
        return _ravel(at, pages.grid.shape) if (at < pages.grid.shape).all() else None

    def pages_in(self, bank: Bank) -> Iterator[tuple[int, int]]:
        """Return the pages in a bank with their offsets, in order of memory."""
        for offset in range(0, self.bank_bytes, self.aligned_page_bytes):
            if (page := self.page_at(bank, offset)) is not None:
                yield page, offset

    def page_of(self, element: Iterable[int]) -> int:
        """Return the page of an element.

        >>> plain = ChipLayout((4, 64, 64), DataType.UINT8, Layout.TILE, Interleaved(12))
        >>> plain.page_of((1, 33, 5)), plain.place(plain.page_of((1, 33, 5)))
        (6, PagePlace(bank=6, offset=0))
        """
        grid = page_grid(self)
        return _ravel(grid.block_of(element), grid.counts)

    def __str__(self) -> str:
        return f"{self.kind.value}{list(self.shape)} in {self.layout.name}"


# -- which bank gets which page


def page_grid(layout: ChipLayout) -> BlockGrid:
    """Return the pages of a tensor as blocks of its shape."""
    page, ndim = layout.page_shape, len(layout.shape)
    extents = (1,) * (ndim - 2) + (page.height, max(1, page.width))
    return BlockGrid.blocks(layout.shape, extents[len(extents) - ndim :])


@lru_cache(maxsize=64)
def page_map(layout: ChipLayout) -> PageMap:
    """Return how the pages of a layout are assigned to banks; raise if they do not fit."""
    match layout.memory:
        case Interleaved(banks=banks):
            count = layout.page_count
            grid = BlockGrid.blocks((count,), (1,))
            return PageMap(grid, (count,), tuple(range(banks)))
        case Sharded() as memory:
            return _matrix_map(layout, memory)
        case NdSharded() as memory:
            if not memory.shard:
                raise LayoutError(f"a shard of {layout} needs a shape")
            grid = _shard_grid(layout, (1,) * (2 - len(memory.shard)) + memory.shard)
            return PageMap(grid, grid.counts, memory.grid.cores(memory.orientation))


def _matrix_map(layout: ChipLayout, memory: Sharded) -> PageMap:
    if len(layout.shape) < 2 and layout.layout is Layout.ROW_MAJOR and memory.shard.height > 1:
        raise LayoutError(
            f"the height of a shard of {layout} is {memory.shard.height}; its one row has height 1"
        )
    grid = _shard_grid(layout, (memory.shard.height, memory.shard.width))
    cores = memory.grid.cores(memory.orientation)
    if memory.scheme is Scheme.BLOCK:
        return PageMap(grid, _block_slots(layout, memory, grid.counts), cores)
    names, page = ("height", "width"), layout.page_shape
    along, other = (0, 1) if memory.scheme is Scheme.HEIGHT else (1, 0)
    if grid.block_shape[other] != grid.shape[other]:
        unit = (page.height, page.width)[other]
        raise LayoutError(
            f"the {names[other]} of a {memory.scheme.value} shard of {layout} is "
            f"{grid.block_shape[other] * unit}; the tensor's is {grid.shape[other] * unit}, "
            "and it is not cut"
        )
    if grid.counts[along] > len(cores):
        raise LayoutError(
            f"the {names[along]} of {layout} makes {grid.counts[along]} "
            f"shards of {memory.shard}, and the grid has {len(cores)} cores"
        )
    return PageMap(grid, grid.counts, cores)


def _block_slots(layout: ChipLayout, memory: Sharded, shards: Point) -> Point:
    """Return the grid of cores on which blocks lie as in the matrix, or transposed."""
    if len(memory.grid.ranges) != 1:
        raise LayoutError(f"blocks need one rectangle of cores: {memory.grid}")
    (cores,) = memory.grid.ranges
    room = [("rows", cores.rows), ("columns", cores.columns)]
    if memory.orientation is ShardOrientation.COL_MAJOR:
        room.reverse()
    for side, count, (name, most) in zip(("height", "width"), shards, room):
        if count > most:
            raise LayoutError(
                f"the {side} of {layout} makes {count} shards of {memory.shard}, and "
                f"{memory.orientation.name} the grid has {most} {name} of cores for them"
            )
    return tuple(most for _, most in room)


def _shard_grid(layout: ChipLayout, shard: Point) -> BlockGrid:
    """Return the pages of a tensor cut into shards, at the rank of a shard."""
    page = layout.page_shape
    units = (1,) * (len(shard) - 2) + (page.height, page.width)
    for dim, (size, unit) in enumerate(zip(shard, units)):
        if size < 1:
            raise LayoutError(f"dimension {dim} of shard {shard} of {layout} is {size}")
        if size % unit:
            raise LayoutError(
                f"dimension {dim} of shard {shard} of {layout} is not a whole number of tiles: "
                f"{size} = {unit} x {size // unit} + {size % unit}"
            )
    counts = (1,) * len(shard) + page_grid(layout).counts
    first = len(counts) - len(shard) + 1
    pages = (prod(counts[:first]), *counts[first:])  # leading dimensions count as one
    return BlockGrid.blocks(pages, [size // unit for size, unit in zip(shard, units)])


def _ravel(at: Iterable[int], shape: Point) -> int:
    return int(np.ravel_multi_index(tuple(at), shape)) if shape else 0

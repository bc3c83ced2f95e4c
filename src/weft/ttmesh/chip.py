"""Inside a chip: which page of a tensor lies in which bank or core, and at which offset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from math import prod
from typing import NamedTuple, TypeAlias

from weft.errors import LayoutError, WeftError
from weft.ttmesh.config import Extent, ShardOrientation
from weft.ttmesh.cores import Core, CoreGrid
from weft.ttmesh.formats import TILE, DataType
from weft.ttmesh.tile import padded_shape
from weft.values import Point, as_count, as_point, as_shape, freeze


class Layout(Enum):
    """What a page is: a row of elements, or a tile of 32 x 32."""

    ROW_MAJOR = "ROW_MAJOR"
    TILE = "TILE"


class Scheme(Enum):
    """How a matrix is cut over cores: into bands, columns, or blocks."""

    HEIGHT = "HEIGHT_SHARDED"
    WIDTH = "WIDTH_SHARDED"
    BLOCK = "BLOCK_SHARDED"


@dataclass(frozen=True, slots=True, init=False)
class Interleaved:
    """Page after page, each to the next bank."""

    banks: int

    def __init__(self, banks: int) -> None:
        if as_count(banks, "banks") < 1:
            raise WeftError("pages need a bank to lie in")
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

    A shard of lower rank than the tensor's counts its leading dimensions as one.
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


class Place(NamedTuple):
    """Where a page lies: the bank, and the bytes before it there."""

    bank: Bank
    offset: int


class Deal(NamedTuple):
    """How pages are dealt out: all in the numbers of pages, at one rank."""

    pages: Point
    """The grid of pages of the tensor."""
    shard: Point
    """The pages of a shard."""
    slots: Point
    """The grid by which shards are numbered."""
    banks: tuple[Bank, ...]

    @property
    def shards(self) -> Point:
        """The grid of shards."""
        return tuple(-(-n // size) for n, size in zip(self.pages, self.shard))


@dataclass(frozen=True, slots=True, init=False)
class ChipLayout:
    """A tensor in the memory of one chip.

    >>> memory = Sharded(Scheme.HEIGHT, Extent(height=32, width=64), CoreGrid.of(4, 1))
    >>> layout = ChipLayout((1, 1, 128, 64), DataType.BFLOAT16, Layout.TILE, memory)
    >>> layout.page_count, layout.page_bytes, layout.place(5)
    (8, 2048, Place(bank=Core(x=2, y=0), offset=2048))
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
        deal(self)

    @property
    def page_shape(self) -> Extent:
        """The elements of a page."""
        if self.layout is Layout.TILE:
            return Extent(height=TILE, width=TILE)
        match self.memory:
            case Interleaved():
                return Extent(height=1, width=_matrix(self.shape)[-1])
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
        return -(-self.page_bytes // self.alignment) * self.alignment

    @property
    def page_count(self) -> int:
        """The pages of the tensor."""
        return prod(deal(self).pages)

    @property
    def banks(self) -> tuple[Bank, ...]:
        """The banks, in the order in which they are used."""
        return deal(self).banks

    @property
    def bank_bytes(self) -> int:
        """The bytes each bank gives: as many as the fullest needs, pages that hold nothing too."""
        dealt = deal(self)
        rounds = -(-prod(dealt.shards) // len(dealt.banks)) if prod(dealt.shards) else 0
        return rounds * prod(dealt.shard) * self.aligned_page_bytes

    def place(self, page: int) -> Place:
        """The bank of a page, and its offset there."""
        dealt = deal(self)
        if as_count(page, "page") >= prod(dealt.pages):
            raise WeftError(f"no page {page}: {self} has {prod(dealt.pages)}")
        at = unravel(page, dealt.pages)
        number = ravel(tuple(x // n for x, n in zip(at, dealt.shard)), dealt.slots)
        inside = ravel(tuple(x % n for x, n in zip(at, dealt.shard)), dealt.shard)
        turn, bank = divmod(number, len(dealt.banks))
        offset = (turn * prod(dealt.shard) + inside) * self.aligned_page_bytes
        return Place(dealt.banks[bank], offset)

    def page_at(self, bank: Bank, offset: int) -> int | None:
        """The page in which a byte of a bank lies; None where no page of the tensor is."""
        dealt = deal(self)
        if bank not in dealt.banks:
            raise WeftError(f"{_told(bank)} holds nothing of {self}")
        slot, inside = divmod(
            as_count(offset, "offset") // self.aligned_page_bytes, prod(dealt.shard)
        )
        number = slot * len(dealt.banks) + dealt.banks.index(bank)
        if number >= prod(dealt.slots):
            return None
        shard = unravel(number, dealt.slots)
        within = unravel(inside, dealt.shard)
        at = tuple(x * n + y for x, n, y in zip(shard, dealt.shard, within))
        there = all(x < n for x, n in zip(at, dealt.pages))
        return ravel(at, dealt.pages) if there else None

    def pages_in(self, bank: Bank) -> Iterator[tuple[int, int]]:
        """The pages in a bank, each with its offset, in order of memory."""
        for offset in range(0, self.bank_bytes, self.aligned_page_bytes):
            if (page := self.page_at(bank, offset)) is not None:
                yield page, offset

    def page_of(self, element: Iterable[int]) -> int:
        """The page that an element lies in.

        >>> plain = ChipLayout((4, 64, 64), DataType.UINT8, Layout.TILE, Interleaved(12))
        >>> plain.page_of((1, 33, 5)), plain.place(plain.page_of((1, 33, 5)))
        (6, Place(bank=6, offset=0))
        """
        at = as_point(element, "element", len(self.shape))
        for dim, (x, size) in enumerate(zip(at, self.shape)):
            if not 0 <= x < size:
                raise WeftError(f"dimension {dim} of size {size} has no element {x}")
        *lead, row, column = _matrix(at, fill=0)
        page = self.page_shape
        spot = (*lead, row // page.height, column // page.width)
        return ravel(spot, page_grid(self))

    def __str__(self) -> str:
        return f"{self.kind.value}{list(self.shape)} in {self.layout.name}"


# -- how pages are dealt out


def page_grid(layout: ChipLayout) -> Point:
    """The pages of a tensor in each dimension."""
    page = layout.page_shape
    sizes = padded_shape(layout.shape) if layout.layout is Layout.TILE else _matrix(layout.shape)
    *lead, height, width = sizes
    return (*lead, -(-height // page.height), -(-width // page.width) if page.width else 0)


@lru_cache(maxsize=64)
def deal(layout: ChipLayout) -> Deal:
    """How the pages of a layout are dealt out; what does not fit is refused."""
    match layout.memory:
        case Interleaved(banks=banks):
            pages = (prod(page_grid(layout)),)
            return Deal(pages, (1,), pages, tuple(range(banks)))
        case Sharded() as memory:
            return _deal_matrix(layout, memory)
        case NdSharded() as memory:
            return _deal_nd(layout, memory)


def _deal_matrix(layout: ChipLayout, memory: Sharded) -> Deal:
    if len(layout.shape) < 2 and layout.layout is Layout.ROW_MAJOR and memory.shard.height > 1:
        raise LayoutError(
            f"the height of a shard of {layout} is {memory.shard.height}; its one row has height 1"
        )
    shard = _in_pages(layout, (memory.shard.height, memory.shard.width))
    pages = _at_rank(page_grid(layout), 2)
    cores = memory.grid.cores(memory.orientation)
    dealt = Deal(pages, shard, (1, 1), cores)
    if memory.scheme is Scheme.BLOCK:
        return dealt._replace(slots=_block_slots(layout, memory, dealt.shards))
    other = 1 if memory.scheme is Scheme.HEIGHT else 0
    unit = (layout.page_shape.height, layout.page_shape.width)[other]
    name = ("height", "width")[other]
    if shard[other] != pages[other]:
        raise LayoutError(
            f"the {name} of a {memory.scheme.value} shard of {layout} is {shard[other] * unit}; "
            f"the tensor's is {pages[other] * unit}, and it is not cut"
        )
    if dealt.shards[1 - other] > len(cores):
        raise LayoutError(
            f"the {('height', 'width')[1 - other]} of {layout} makes {dealt.shards[1 - other]} "
            f"shards of {memory.shard}, and the grid has {len(cores)} cores"
        )
    return dealt._replace(slots=dealt.shards)


def _block_slots(layout: ChipLayout, memory: Sharded, shards: Point) -> Point:
    """Blocks lie on a rectangle of cores as they lie in the matrix, or turned."""
    if len(memory.grid.ranges) != 1:
        raise LayoutError(f"blocks need one rectangle of cores: {memory.grid}")
    (cores,) = memory.grid.ranges
    room: tuple[tuple[str, int], ...] = (("rows", cores.rows), ("columns", cores.columns))
    if memory.orientation is ShardOrientation.COL_MAJOR:
        room = room[::-1]
    for side, count, (name, most) in zip(("height", "width"), shards, room):
        if count > most:
            raise LayoutError(
                f"the {side} of {layout} makes {count} shards of {memory.shard}, and "
                f"{memory.orientation.name} the grid has {most} {name} of cores for them"
            )
    return tuple(most for _, most in room)


def _deal_nd(layout: ChipLayout, memory: NdSharded) -> Deal:
    if not memory.shard:
        raise LayoutError(f"a shard of {layout} needs a shape")
    shard = _in_pages(layout, (1,) * (2 - len(memory.shard)) + memory.shard)
    pages = _at_rank(page_grid(layout), len(shard))
    dealt = Deal(pages, shard, (1,) * len(pages), memory.grid.cores(memory.orientation))
    return dealt._replace(slots=dealt.shards)


def _in_pages(layout: ChipLayout, shard: Point) -> Point:
    """A shard in pages."""
    page = layout.page_shape
    units = (1,) * (len(shard) - 2) + (page.height, page.width)
    for dim, (size, unit) in enumerate(zip(shard, units)):
        if size < 1:
            raise LayoutError(f"dimension {dim} of shard {shard} of {layout} is {size}")
        if size % unit:
            raise LayoutError(
                f"dimension {dim} of shard {shard} of {layout} is no whole number of tiles: "
                f"{size} = {unit} x {size // unit} + {size % unit}"
            )
    return tuple(size // unit for size, unit in zip(shard, units))


def _at_rank(grid: Point, rank: int) -> Point:
    """The grid with its leading dimensions counted as one, or with ones before them."""
    if len(grid) <= rank:
        return (1,) * (rank - len(grid)) + grid
    cut = len(grid) - rank + 1
    return (prod(grid[:cut]), *grid[cut:])


def _matrix(shape: Point, fill: int = 1) -> Point:
    return (fill,) * (2 - len(shape)) + shape


def ravel(at: Point, shape: Point) -> int:
    """The number of a point, the last dimension running fastest.

    >>> ravel((1, 2), (3, 4)), unravel(6, (3, 4))
    (6, (1, 2))
    """
    number = 0
    for x, size in zip(at, shape):
        number = number * size + x
    return number


def unravel(number: int, shape: Point) -> Point:
    """The point of a number."""
    at = []
    for size in reversed(shape):
        number, x = divmod(number, size) if size else (number, 0)
        at.append(x)
    return tuple(reversed(at))


def _told(bank: Bank) -> str:
    return f"core ({bank.x}, {bank.y})" if isinstance(bank, Core) else f"bank {bank}"

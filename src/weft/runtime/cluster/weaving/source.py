"""`Source`: where an array comes from, said in full, so that a worker needs no plan to make it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from weft.program.messages import Slices
from weft.space import ZRange
from weft.values import Point


class Leaf(NamedTuple):
    """A box of an input of the graph."""

    name: str
    box: ZRange


class Read(NamedTuple):
    """A block that another task made."""

    task: int
    place: int = 0


@dataclass(frozen=True, slots=True)
class Local:
    """A result of a stage of the same task; no tuple, so that it is equal to no `Read`."""

    stage: int
    place: int = 0


class Part(NamedTuple):
    """A part of an array."""

    of: Source
    where: Slices


class Hide(NamedTuple):
    """An array of its shape that a monoid does not see."""

    of: Source
    monoid: str


class Fold(NamedTuple):
    """Parts of a reduction, combined in their order."""

    monoid: str
    parts: tuple[Source, ...]


class Join(NamedTuple):
    """An array put together from pieces."""

    shape: Point
    dtype: str
    pieces: tuple[tuple[Slices, Source], ...]


Source: TypeAlias = Leaf | Read | Local | Part | Hide | Fold | Join
"""Where an array comes from."""


def leaves(source: Source) -> Iterator[Leaf | Read | Local]:
    """What a source is made of in the end, one that is used twice twice.

    >>> list(leaves(Fold("sum", (Read(1), Part(Read(2), (slice(0, 1),))))))
    [Read(task=1, place=0), Read(task=2, place=0)]
    """
    match source:
        case Leaf() | Read() | Local():
            yield source
        case Part(of=inner) | Hide(of=inner):
            yield from leaves(inner)
        case Fold(parts=parts):
            for part in parts:
                yield from leaves(part)
        case Join(pieces=pieces):
            for _, piece in pieces:
                yield from leaves(piece)


def renamed(source: Source, number: Callable[[int], int]) -> Source:
    """The source with the tasks that it reads numbered otherwise."""
    match source:
        case Read(task=task, place=place):
            return Read(number(task), place)
        case Part(of=inner, where=where):
            return Part(renamed(inner, number), where)
        case Hide(of=inner, monoid=monoid):
            return Hide(renamed(inner, number), monoid)
        case Fold(monoid=monoid, parts=parts):
            return Fold(monoid, tuple(renamed(part, number) for part in parts))
        case Join(shape=shape, dtype=dtype, pieces=pieces):
            moved = tuple((into, renamed(piece, number)) for into, piece in pieces)
            return Join(shape, dtype, moved)
    return source


def narrowed(source: Source, where: Slices) -> Source:
    """A part of a source, from no more than it needs.

    >>> whole = Join((4,), "int8", (((slice(0, 2),), Read(0)), ((slice(2, 4),), Read(1))))
    >>> narrowed(whole, (slice(3, 4),))
    Part(of=Read(task=1, place=0), where=(slice(1, 2, None),))
    """
    match source:
        case Part(of=inner, where=outer):
            return narrowed(inner, tuple(map(_inner, outer, where)))
        case Hide(of=inner, monoid=monoid):
            return Hide(narrowed(inner, where), monoid)
        case Fold(monoid=monoid, parts=parts):
            return Fold(monoid, tuple(narrowed(part, where) for part in parts))
        case Join(dtype=dtype, pieces=pieces):
            return _joined(shape_of(where), dtype, tuple(_overlaps(pieces, where)))
    return Part(source, where)


def _joined(shape: Point, dtype: str, pieces: tuple[tuple[Slices, Source], ...]) -> Source:
    """Pieces put together; one that is the whole is that."""
    if len(pieces) == 1 and shape_of(pieces[0][0]) == shape:
        return pieces[0][1]
    return Join(shape, dtype, pieces)


def _overlaps(
    pieces: tuple[tuple[Slices, Source], ...], where: Slices
) -> Iterator[tuple[Slices, Source]]:
    """The parts of pieces that lie in a place, and where there."""
    for into, piece in pieces:
        shared = tuple(map(_meet, into, where))
        if all(span.start < span.stop for span in shared):
            target = tuple(map(_outside, shared, where))
            inside = tuple(map(_outside, shared, into))
            yield target, piece if shared == into else narrowed(piece, inside)


def _inner(outer: slice, inner: slice) -> slice:
    return slice(outer.start + inner.start, outer.start + inner.stop)


def _outside(span: slice, origin: slice) -> slice:
    return slice(span.start - origin.start, span.stop - origin.start)


def _meet(one: slice, two: slice) -> slice:
    return slice(max(one.start, two.start), min(one.stop, two.stop))


def shape_of(where: Slices) -> Point:
    """The shape of a part."""
    return tuple(part.stop - part.start for part in where)

"""Axes and parts of axes as small tuples: the arithmetic of propagation.

A piece is `(axis, before, size)`: of axis number `axis` the digit of `size` after `before` cells.
"""

from __future__ import annotations

from typing import TypeAlias

from weft.layout import Axis, DeviceMesh, SubAxis

Piece: TypeAlias = tuple[int, int, int]
Pieces: TypeAlias = tuple[Piece, ...]


def overlaps(one: Piece, two: Piece) -> bool:
    """Whether two pieces share cells of an axis; an axis of one cell shares that with itself.

    >>> overlaps((0, 1, 4), (0, 2, 2)), overlaps((0, 1, 2), (0, 2, 2))
    (True, False)
    >>> overlaps((0, 1, 1), (0, 1, 1))
    True
    """
    return one == two or (
        one[0] == two[0] and one[1] < two[1] * two[2] and two[1] < one[1] * one[2]
    )


def contains(one: Piece, two: Piece) -> bool:
    """Whether the first piece holds all of the second."""
    return one[0] == two[0] and one[1] <= two[1] and two[1] * two[2] <= one[1] * one[2]


def is_prefix(one: Piece, two: Piece) -> bool:
    """Whether the first piece is the major part of the second, or all of it."""
    return one[0] == two[0] and one[1] == two[1] and one[2] <= two[2]


def nests(one: Piece, two: Piece) -> bool:
    """Whether two pieces of an axis can be told apart: their ends divide each other.

    >>> nests((0, 1, 2), (0, 2, 3)), nests((0, 1, 2), (0, 3, 2))
    (True, False)
    """
    ends = sorted((one[1], one[1] * one[2], two[1], two[1] * two[2]))
    return not (ends[1] % ends[0] or ends[2] % ends[1] or ends[3] % ends[2])


def without(piece: Piece | None, others: Pieces) -> Piece | None:
    """The largest major part of a piece that shares nothing with the others.

    >>> without((0, 1, 8), ((0, 2, 2),)), without((0, 2, 2), ((0, 1, 4),))
    ((0, 1, 2), None)
    """
    for other in others:
        if piece is None:
            return None
        if piece[0] == other[0]:
            if not nests(piece, other):
                return None
            if overlaps(piece, other):
                axis, before, _ = piece
                piece = (axis, before, other[1] // before) if before < other[1] else None
    return piece


def append(pieces: list[Piece], piece: Piece) -> None:
    """Add a piece at the minor end, joined to the last where it goes on from it."""
    if pieces:
        axis, before, size = pieces[-1]
        if axis == piece[0] and before * size == piece[1]:
            pieces[-1] = (axis, before, size * piece[2])
            return
    pieces.append(piece)


def is_strict_prefix(one: Pieces, two: Pieces) -> bool:
    """Whether the first list says the same as the second, and less."""
    if len(one) > len(two) or one == two:
        return False
    if not one:
        return True
    return one[:-1] == two[: len(one) - 1] and is_prefix(one[-1], two[len(one) - 1])


def piece_of(mesh: DeviceMesh, axis: Axis) -> Piece:
    """An axis of a mesh, or a part of one, as a piece.

    >>> piece_of(DeviceMesh("m", (2, 8), ("x", "y")), SubAxis("y", 2, 2))
    (1, 2, 2)
    """
    name, before, size = (axis, 1, 0) if isinstance(axis, str) else axis
    position = mesh.axis_names.index(name)
    return position, before, size or mesh.shape[position]


def axis_of(mesh: DeviceMesh, piece: Piece) -> Axis:
    """A piece as an axis of a mesh: the inverse of `piece_of`."""
    position, before, size = piece
    name = mesh.axis_names[position]
    return name if size == mesh.shape[position] else SubAxis(name, before, size)

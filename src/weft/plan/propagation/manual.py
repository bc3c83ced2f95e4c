"""The border of a manual computation: inside, its own axes are not there.

A program writes a computation for one cell along some axes, the manual ones, and leaves the others
free. An array outside is cut by manual axes first; inside there is a part of it, which the free
axes may cut. On an edge the free axes go in and out, and the manual ones stand before them outside.
"""

from __future__ import annotations

from typing import NamedTuple

from weft.plan.propagation.axes import Piece, Pieces
from weft.plan.propagation.factors import TensorSharding


class Border(NamedTuple):
    """How one array lies outside of a manual computation, as far as that is its own affair."""

    outside: TensorSharding
    manual: frozenset[int]
    is_argument: bool
    """Whether values go in here, so that the target of the edge is inside, or come out."""

    def seen(self, target: TensorSharding) -> TensorSharding:
        """The sharding of the target as the sources see it."""
        return self.going_out(target) if self.is_argument else self.going_in(target)

    def kept(self, seen: TensorSharding) -> TensorSharding:
        """The sharding of the target from that which its sources see."""
        return self.going_in(seen) if self.is_argument else self.going_out(seen)

    def going_in(self, sharding: TensorSharding) -> TensorSharding:
        """A sharding outside, without the manual axes."""
        return sharding._replace(
            axes=tuple(pieces[self._manual_count(pieces) :] for pieces in sharding.axes),
            replicated=self._free(sharding.replicated),
            unreduced=self._free(sharding.unreduced),
        )

    def going_out(self, sharding: TensorSharding) -> TensorSharding:
        """A sharding inside, behind the manual axes."""
        before = [pieces[: self._manual_count(pieces)] for pieces in self.outside.axes]
        kept = {*self.outside.replicated, *sharding.replicated}
        return sharding._replace(
            axes=tuple(first + rest for first, rest in zip(before, sharding.axes)),
            replicated=tuple(sorted(kept)),
            unreduced=self.outside.unreduced,
        )

    def _manual_count(self, pieces: Pieces) -> int:
        return sum(self._is_manual(piece) for piece in pieces)

    def _free(self, pieces: Pieces) -> Pieces:
        return tuple(piece for piece in pieces if not self._is_manual(piece))

    def _is_manual(self, piece: Piece) -> bool:
        return piece[0] in self.manual

"""The ways in which boxes go between ranks: messages, and the collectives of torch.

What is counted is what is handed over and taken: the bytes of the boxes in the buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from weft.lang.struct_array import StructArray
from weft.program.messages import Piece, Slices
from weft.runtime.exchange import assemble
from weft.runtime.torch.schedule import Schedule, volume

_SUMMED = "float32 float64 int8 uint8 int32 int64"
SUMMED = frozenset(getattr(torch, name) for name in _SUMMED.split())
"""The dtypes that every back-end adds up by itself; those of less precision are added up here."""


class Carried(NamedTuple):
    """The array of a rank after a step, and the bytes that it sent and received."""

    array: torch.Tensor
    sent: int
    received: int


class Rank(NamedTuple):
    """This rank, in a group that it talks in."""

    device: int
    group: Any
    peers: Sequence[int]
    """The devices of the group, in the order of its ranks."""


Way = Callable[[Any, torch.Tensor, Schedule, Sequence[str], Rank], Carried]


def by_messages(
    xp: Any, mine: torch.Tensor, plan: Schedule, monoids: Sequence[str], at: Rank
) -> Carried:
    """One message for each pair of ranks that share something, all in one batch."""
    outgoing = {peer: _pack(mine, boxes) for peer, boxes in plan.sends.items()}
    incoming = {peer: _room(mine, boxes) for peer, boxes in plan.receives.items()}
    batch = [
        dist.P2POp(what, _bytes(buffer), group=at.group, group_peer=at.peers.index(peer))
        for what, buffers in ((dist.isend, outgoing), (dist.irecv, incoming))
        for peer, buffer in buffers.items()
    ]
    for work in dist.batch_isend_irecv(batch) if batch else ():
        work.wait()
    return _put_together(xp, mine, plan, monoids, at, outgoing.values(), incoming)


def by_all_to_all(
    xp: Any, mine: torch.Tensor, plan: Schedule, monoids: Sequence[str], at: Rank
) -> Carried:
    """All pieces that a group exchanges in one call; parts are combined here, in order."""
    outgoing = [_pack(mine, plan.sends.get(peer, [])) for peer in at.peers]
    sizes = [sum(map(volume, plan.receives.get(peer, []))) for peer in at.peers]
    out = _space(mine, sum(sizes))
    dist.all_to_all_single(
        _bytes(out),
        _bytes(torch.cat(outgoing)),
        [size * mine.itemsize for size in sizes],
        [buffer.nbytes for buffer in outgoing],
        group=at.group,
    )
    incoming = {peer: part for peer, part in zip(at.peers, out.split(sizes)) if len(part)}
    return _put_together(xp, mine, plan, monoids, at, outgoing, incoming)


def by_all_gather(
    xp: Any, mine: torch.Tensor, plan: Schedule, monoids: Sequence[str], at: Rank
) -> Carried:
    """Everybody's shard to everybody of a group; parts are combined here, in order."""
    flat = _pack(mine, [tuple(slice(0, n) for n in mine.shape)])
    out = _space(mine, len(at.peers) * len(flat))
    dist.all_gather_single(_bytes(out), _bytes(flat), group=at.group)
    shards = zip(at.peers, out.split(len(flat)) if len(flat) else ())
    incoming = {peer: shard for peer, shard in shards if peer != at.device}
    return _put_together(xp, mine, plan, monoids, at, [flat] * len(incoming), incoming)


def by_all_reduce(
    xp: Any, mine: torch.Tensor, plan: Schedule, monoids: Sequence[str], at: Rank
) -> Carried:
    """The sum of two shards on both ranks: with two, what torch moves is what the plan says."""
    total = mine.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=at.group)
    return Carried(total, total.nbytes, total.nbytes)


def by_reduce_scatter(
    xp: Any, mine: torch.Tensor, plan: Schedule, monoids: Sequence[str], at: Rank
) -> Carried:
    """The sum over a group, each rank its piece of it."""
    own = [where for into, parts in plan.assembly.pieces for _, s, where in parts if s == at.device]
    packed = torch.cat(
        [_pack(mine, own if peer == at.device else plan.sends[peer]) for peer in at.peers]
    )
    out = mine.new_empty(sum(map(volume, own)))
    dist.reduce_scatter_single(out, packed, group=at.group)
    boxes = _unpack(mine, out, own)
    pieces = [Piece(into, (((), at.device, ()),)) for into, _ in plan.assembly.pieces]
    alone = plan.assembly._replace(pieces=tuple(pieces))
    made = assemble(xp, alone, (), mine.dtype, lambda _, where: next(boxes))
    return Carried(made, packed.nbytes - out.nbytes, out.nbytes * (len(at.peers) - 1))


def _put_together(
    xp: Any,
    mine: torch.Tensor,
    plan: Schedule,
    monoids: Sequence[str],
    at: Rank,
    outgoing: Iterable[torch.Tensor],
    incoming: dict[int, torch.Tensor],
) -> Carried:
    """Assemble the array of a rank from what it had and received, in the order of pieces."""
    boxes = {peer: _unpack(mine, buffer, plan.receives[peer]) for peer, buffer in incoming.items()}

    def read(sender: int, where: Slices) -> torch.Tensor | StructArray:
        return mine[where] if sender == at.device else next(boxes[sender])

    made = assemble(xp, plan.assembly, monoids, mine.dtype, read)
    sent, received = (sum(b.nbytes for b in some) for some in (outgoing, incoming.values()))
    return Carried(made, sent, received)


def _pack(array: torch.Tensor | StructArray, boxes: Sequence[Slices]) -> torch.Tensor:
    """Boxes of an array, one after another in one buffer; a copy only where it must be.

    Elements with several components are rows of bytes.
    """
    if isinstance(array, StructArray):
        flat = [_rows(array[where]) for where in boxes]
    else:
        flat = [array[where].resolve_conj().resolve_neg().reshape(-1) for where in boxes]
    if len(flat) == 1 and flat[0].is_contiguous() and flat[0].stride(-1) == 1:
        return flat[0]  # a single element may have any stride
    return torch.cat(flat) if flat else _space(array, 0)


def _space(like: torch.Tensor | StructArray, count: int) -> torch.Tensor:
    """A buffer for a number of elements."""
    if isinstance(like, StructArray):
        return torch.empty((count, like.itemsize), dtype=torch.uint8, device=like.device)
    return like.new_empty(count)


def _room(like: torch.Tensor | StructArray, boxes: Sequence[Slices]) -> torch.Tensor:
    return _space(like, sum(map(volume, boxes)))


def _unpack(
    like: torch.Tensor | StructArray, buffer: torch.Tensor, boxes: Sequence[Slices]
) -> Iterator[torch.Tensor | StructArray]:
    """The boxes of a buffer, each in its shape."""
    parts = buffer.split([volume(where) for where in boxes])
    shapes = [[part.stop - part.start for part in where] for where in boxes]
    if isinstance(like, StructArray):
        return (_elements(like, part, shape) for part, shape in zip(parts, shapes))
    return (part.reshape(shape) for part, shape in zip(parts, shapes))


def _rows(array: StructArray) -> torch.Tensor:
    """The elements as rows of bytes: the components of each, one after another."""
    count, columns = prod(array.shape), []
    for part in array.components:
        rows = part.reshape(count, prod(part.shape[array.ndim :]))
        if rows.stride(-1) != 1:  # a single element may have any stride, and counts as contiguous
            rows = rows.clone(memory_format=torch.contiguous_format)
        columns.append(rows.view(torch.uint8))
    return torch.cat(columns, dim=1)


def _elements(like: StructArray, rows: torch.Tensor, shape: Sequence[int]) -> StructArray:
    """Rows of bytes as elements."""
    first = 0

    def part(model: torch.Tensor) -> torch.Tensor:
        nonlocal first
        inner = model.shape[like.ndim :]
        last = first + prod(inner) * model.itemsize
        own = rows[:, first:last].clone(memory_format=torch.contiguous_format)
        first = last
        return own.view(model.dtype).reshape((*shape, *inner))

    return like.map(part, len(shape))


def _bytes(buffer: torch.Tensor) -> torch.Tensor:
    """A buffer as bytes, so that every dtype can travel."""
    return buffer.reshape(-1).view(torch.uint8)

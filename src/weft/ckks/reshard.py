"""From one packing to another: by rotations and additions alone where whole ciphertexts move."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from weft.ckks.bsgs import split
from weft.ckks.components import in_order
from weft.ckks.cost import Cost, predict
from weft.ckks.linear import LinearMap, identity, structure
from weft.ckks.lower import lower
from weft.ckks.packing import Packing
from weft.ckks.program import Add, Free, Program, Rotate, Step, then


@dataclass(frozen=True, slots=True, eq=False)
class Reshard:
    """A way from one packing to another: its program, and what it takes."""

    source: Packing
    target: Packing
    program: Program
    cost: Cost


def reshard(source: Packing, target: Packing, keys: int | Collection[int] | None = None) -> Reshard:
    """The cheapest way from a packing to another of the same elements: fewest levels first.

    Where the content of every ciphertext moves as a whole, it is rotated and added, at no level:
    the zeros around it make room. Copies are made by doubling. Everything else is a linear map of
    masks, which takes one level.

    >>> apart = Packing.tiled((4, 5, 5), slots=128, side=(16, 8))  # a channel in each ciphertext
    >>> print(reshard(apart, Packing.tiled((4, 5, 5), slots=128)).cost)
    2 rotations, 2 additions
    >>> print(reshard(Packing.vector(4, slots=16), Packing.vector(4, 16).replicated()).cost)
    2 rotations, 2 additions
    """
    given = identity(source, target)
    whole = _moved(source, target)
    if whole is not None:
        return whole
    found = [_masked(source, target, given, keys)]
    if target.period < target.slots:
        once = target.replicated(max(source.period, target.period))
        second = _moved(once, target)
        if once != target and second is not None:
            first = _masked(source, once, identity(source, once), keys)
            program = then(first.program, second.program)
            found.append(Reshard(source, target, program, first.cost + second.cost))
    return min(found, key=lambda way: (way.cost.rotations, way.cost.plain_products))


def _masked(
    source: Packing, target: Packing, given: LinearMap, keys: int | Collection[int] | None
) -> Reshard:
    parted = split(given, keys)
    return Reshard(source, target, lower(given, parted), predict(given, parted))


def _moved(source: Packing, target: Packing) -> Reshard | None:
    """The way by rotations and additions alone; None where something would have to be masked."""
    moves = _moves(source, target)
    if moves is None:
        return None
    steps, outputs = _written(source, target, moves)
    adds = sum(isinstance(step, Add) for step in steps)
    turns = [step.steps for step in steps if isinstance(step, Rotate)]
    cost = Cost(
        rotations=len(turns),
        additions=adds,
        keys=frozenset(turns),
        inputs=source.ciphertexts,
        outputs=target.ciphertexts,
    )
    program = Program(source.ciphertexts, tuple(outputs), lambda: steps)
    return Reshard(source, target, program, cost)


def _moves(source: Packing, target: Packing) -> list[list[tuple[int, int]]] | None:
    """For each ciphertext that comes out those that go in, each with its rotation."""
    if target.period > source.period:
        return None  # copies would have to be masked
    given = source.reshaped(target.shape) or source
    period = target.period
    blocks, sets = structure(in_order(given.shape, target.shape), given, target, period)
    moves: list[list[tuple[int, int]]] = [[] for _ in range(target.ciphertexts)]
    for (out, number), key in blocks.items():
        if len(sets[key]) > 1:
            return None
        moves[out].append((number, int(sets[key][0])))
    numbers = [number for each in moves for number, _ in each]
    # What has no elements is zero: it comes from another that has none, if there is one.
    empty = [number for number in range(source.ciphertexts) if number not in numbers]
    for each in moves:
        if not each and empty:
            each.append((empty.pop(), 0))
    return moves if len(set(numbers)) == len(numbers) and all(moves) else None


def _written(
    source: Packing, target: Packing, moves: list[list[tuple[int, int]]]
) -> tuple[list[Step], list[int]]:
    """The steps of all moves, and the registers of what comes out."""
    steps, outputs = list[Step](), list[int]()
    fresh = iter(range(source.ciphertexts, 1 << 62))
    used = {number for each in moves for number, _ in each}
    steps += [Free(number) for number in range(source.ciphertexts) if number not in used]
    for each in moves:
        total: int | None = None
        for number, turn in each:
            moved = number
            if turn:
                moved = next(fresh)
                steps += [Rotate(moved, number, turn), Free(number)]
            total = moved if total is None else _added(steps, fresh, total, moved)
        assert total is not None
        turn = target.period
        while turn < source.period:
            copy = next(fresh)
            steps.append(Rotate(copy, total, turn))
            total = _added(steps, fresh, total, copy)
            turn *= 2
        outputs.append(total)
    return steps, outputs


def _added(steps: list[Step], fresh: Iterator[int], one: int, two: int) -> int:
    total = next(fresh)
    steps += [Add(total, one, two), Free(one), Free(two)]
    return total

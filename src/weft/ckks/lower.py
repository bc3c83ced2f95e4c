"""Lower linear maps, repackings, polynomials and sums to slot programs, with their exact counts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest

from numpy.typing import ArrayLike

from weft.ckks.bsgs import RotationTree, Split, split
from weft.ckks.linear import LinearMap, identity, in_order, structure
from weft.ckks.network import PairOperation
from weft.ckks.packing import Floats, Packing
from weft.ckks.parameters import Parameters
from weft.ckks.plaintext import Diagonal, DiagonalWeights, packed
from weft.ckks.polynomial import Evaluation
from weft.ckks.slot_program import (
    Constant,
    OperationCounts,
    SlotProgram,
    SlotProgramBuilder,
    SlotValues,
    count,
)
from weft.errors import WeftError
from weft.values import counted

# -- linear maps ----------------------------------------------------------------------------------


def lower(
    linear_map: LinearMap,
    diagonal_split: Split,
    weights: Sequence[ArrayLike | None] = (),
    *,
    scales: Sequence[ArrayLike | None] = (),
    bias: ArrayLike | None = None,
    encoded: Sequence[float] = (),
    drop: Sequence[int | None] = (),
) -> SlotProgram:
    """Return the program of a linear map with its weights: one level, one rescale per output.

    There is a weight and a scale for each part of the map, or None. A scale multiplies the weights,
    a bias is added at the end, and both are broadcast to the result.
    For each operand, `encoded` has the scale of its plaintexts (default: that of the level), and
    `drop` the level that it is dropped to first: together they take an operand of a higher level
    to the scale of the result.

    >>> from weft.ckks.linear import linear
    >>> from weft.lang import Signature
    >>> signature = Signature.of("k, k n -> n  sum: k", [(64,), (64, 64)])
    >>> vector = Packing.vector(64, slots=64)
    >>> dense = linear(signature, vector, vector, weight=1)
    >>> counts = count(lower(dense, split(dense), [[[1.0] * 64] * 64]))
    >>> print(counts, counts.live)
    14 rotations, 64 plain products, 1 rescale, 63 additions, 1 level 12
    """
    lowering = _LinearLowering(
        linear_map, diagonal_split, DiagonalWeights(linear_map, weights, scales)
    )
    number = 0
    for source, scale, level in zip_longest(linear_map.sources, encoded, drop):
        for _ in range(source.ciphertexts):
            lowering.rotate_input(number, scale, level)
            number += 1
    rows = None if bias is None else packed(linear_map.target, bias)
    outputs = [
        lowering.output(n, None if rows is None else rows[n]) for n in range(linear_map.outputs)
    ]
    return lowering.builder.program(outputs)


class _LinearLowering:
    """Appends the baby steps of all inputs, then every output, giant step by giant step."""

    def __init__(
        self, linear_map: LinearMap, diagonal_split: Split, weights: DiagonalWeights
    ) -> None:
        self.map, self.split, self.weights = linear_map, diagonal_split, weights
        self.builder = SlotProgramBuilder(linear_map.inputs)
        self.babies: list[dict[int, int]] = []
        """For each input, the register of every baby step."""
        self.scales: list[float | None] = []
        self.giants = [
            (diagonals - babies) % linear_map.period
            for diagonals, babies in zip(linear_map.sets, diagonal_split.parts)
        ]

    def rotate_input(self, number: int, scale: float | None, level: int | None) -> None:
        """Append the baby steps of one input."""
        first = number if level is None else self.builder.drop(number, level)
        registers = {0: first}
        for step, parent, difference in self.split.babies[number].edges:
            registers[step] = self.builder.rotate(registers[parent], difference)
        self.babies.append(registers)
        self.scales.append(scale)

    def output(self, out: int, bias: Floats | None) -> int:
        """Append one output: sums from the leaves of its tree to the root, each rotated once."""
        builder, terms = self.builder, self._terms(out)
        tree = self.split.giants[out]
        turns, sums = _total_rotations(tree, self.map.slots), dict[int, int]()

        def add(step: int, term: int) -> None:
            sums[step] = builder.add(sums[step], term) if step in sums else term

        for step, parent, difference in _leaves_first(tree):
            for number, baby in terms.get(step, ()):
                plain = Diagonal(self.weights, out, number, turns[step], baby)
                add(step, builder.mul_plain(self.babies[number][baby], plain, self.scales[number]))
            if parent is not None:
                add(parent, builder.rotate(sums.pop(step), difference))
        result = builder.rescale(sums[0])
        return result if bias is None else builder.add_plain(result, SlotValues(bias))

    def _terms(self, out: int) -> dict[int, list[tuple[int, int]]]:
        """Return the products of an output, as (input, baby step), by giant step."""
        terms: dict[int, list[tuple[int, int]]] = {}
        for number in range(self.map.inputs):
            key = self.map.blocks.get((out, number))
            if key is not None:
                pairs = zip(self.giants[key].tolist(), self.split.parts[key].tolist())
                for giant, baby in pairs:
                    terms.setdefault(giant, []).append((number, baby))
        return terms


def _total_rotations(tree: RotationTree, slots: int) -> dict[int, int]:
    """Return how far each step is rotated on its path: with copies, full turns may add up."""
    turns = {0: 0}
    for step, parent, difference in tree.edges:
        turns[step] = (turns[parent] + difference) % slots
    return turns


def _leaves_first(tree: RotationTree) -> Iterator[tuple[int, int | None, int]]:
    """Return the steps, children before parents and branch after branch; 0 is the last."""
    stack: list[tuple[int, int | None, int]] = [(0, None, 0)]
    order = list[tuple[int, int | None, int]]()
    while stack:
        step, parent, difference = stack.pop()
        order.append((step, parent, difference))
        stack += [(child, step, key) for child, key in tree.children.get(step, ())]
    return reversed(order)


def predict(
    linear_map: LinearMap, diagonal_split: Split, has_bias: bool = False, drops: int = 0
) -> OperationCounts:
    """Return the operations of a linear map from its sets alone, without writing its program.

    `drops` is the number of inputs that are dropped to a lower level.

    >>> from weft.ckks.linear import linear
    >>> from weft.lang import Signature
    >>> signature = Signature.of("k, k n -> n  sum: k", [(64,), (64, 64)])
    >>> vector = Packing.vector(64, slots=64)
    >>> dense = linear(signature, vector, vector, weight=1)
    >>> print(predict(dense, split(dense)))
    14 rotations, 64 plain products, 1 rescale, 63 additions, 1 level
    """
    return OperationCounts(
        plain_products=linear_map.products,
        rescales=linear_map.outputs,
        additions=linear_map.products - linear_map.outputs,
        plain_additions=linear_map.outputs if has_bias else 0,
        drops=drops,
        rotations_by_step=diagonal_split.rotations_by_step,
        levels=1,
    )


# -- repackings -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Repacking:
    """A program from one packing to another, and its operations."""

    source: Packing
    target: Packing
    cost: OperationCounts
    build: Callable[[], SlotProgram]
    """Returns the program: the planner compares many repackings, and needs few programs."""

    @cached_property
    def program(self) -> SlotProgram:
        """The program."""
        return self.build()


def reshard(
    source: Packing, target: Packing, keys: int | Collection[int] | None = None
) -> Repacking:
    """Return the cheapest program from one packing to another: the fewest levels first.

    Where the content of every ciphertext moves as a whole, it is rotated and added, at no level:
    the zeros around it leave room. Copies come from doubling. Everything else is a linear map of
    masks, which takes one level.

    >>> apart = Packing.tiled((4, 5, 5), slots=128, side=(16, 8))  # a channel in each ciphertext
    >>> print(reshard(apart, Packing.tiled((4, 5, 5), slots=128)).cost)
    2 rotations, 2 additions
    >>> print(reshard(Packing.vector(4, slots=16), Packing.vector(4, 16).replicated()).cost)
    2 rotations, 2 additions
    """
    linear_map = identity(source, target)
    unmasked = _unmasked(source, target)
    if unmasked is not None:
        return unmasked
    candidates = [_masked(source, target, linear_map, keys)]
    if target.period < target.slots:
        once = target.replicated(max(source.period, target.period))
        second = _unmasked(once, target)
        if once != target and second is not None:
            first = _masked(source, once, identity(source, once), keys)
            candidates.append(_in_sequence(first, second))
    return min(candidates, key=lambda each: (each.cost.rotations, each.cost.plain_products))


def _masked(
    source: Packing, target: Packing, linear_map: LinearMap, keys: int | Collection[int] | None
) -> Repacking:
    diagonal_split = split(linear_map, keys)
    cost = predict(linear_map, diagonal_split)
    return Repacking(source, target, cost, lambda: lower(linear_map, diagonal_split))


def _in_sequence(first: Repacking, second: Repacking) -> Repacking:
    def build() -> SlotProgram:
        builder = SlotProgramBuilder(first.program.inputs)
        middle = builder.inline(first.program, range(first.program.inputs))
        return builder.program(builder.inline(second.program, middle))

    return Repacking(first.source, second.target, first.cost + second.cost, build)


def _unmasked(source: Packing, target: Packing) -> Repacking | None:
    """Return the repacking by rotations and additions alone; None where a mask is needed."""
    moves = _moves(source, target)
    if moves is None:
        return None
    builder, outputs = SlotProgramBuilder(source.ciphertexts), list[int]()
    for each in moves:
        moved = [builder.rotate(number, step) if step else number for number, step in each]
        total = moved[0]
        for other in moved[1:]:
            total = builder.add(total, other)
        step = target.period
        while step < source.period:
            total = builder.add(total, builder.rotate(total, step))
            step *= 2
        outputs.append(total)
    program = builder.program(outputs)
    return Repacking(source, target, count(program), lambda: program)


def _moves(source: Packing, target: Packing) -> list[list[tuple[int, int]]] | None:
    """Return for each output the inputs that it consists of, each with its rotation."""
    if target.period > source.period:
        return None  # copies would have to be masked
    view = source.reshaped(target.shape) or source
    related = in_order(view.shape, target.shape)
    blocks, sets = structure(related, view, target, target.period)
    moves: list[list[tuple[int, int]]] = [[] for _ in range(target.ciphertexts)]
    for (out, number), key in blocks.items():
        if len(sets[key]) > 1:
            return None
        moves[out].append((number, int(sets[key][0])))
    numbers = [number for each in moves for number, _ in each]
    # An output without elements is zero: it is an input without elements, if there is one.
    empty = [number for number in range(source.ciphertexts) if number not in numbers]
    for each in moves:
        if not each and empty:
            each.append((empty.pop(), 0))
    return moves if len(set(numbers)) == len(numbers) and all(moves) else None


# -- polynomials and pairs ------------------------------------------------------------------------


def lower_polynomial(
    evaluation: Evaluation,
    parameters: Parameters,
    level: int,
    ciphertexts: int = 1,
    masks: Sequence[Floats] | None = None,
    start: int | None = None,
) -> SlotProgram:
    """Return the program of a polynomial on ciphertexts at a level.

    With masks, one for each ciphertext, constants are added only in the slots of elements, so that
    other slots stay zero, at the same cost. `start` is the level of the inputs if it is higher.

    >>> from weft.ckks.polynomial import plan
    >>> program = lower_polynomial(plan([1, 2, 3]), Parameters(64, 3, security=None), 3, 2)
    >>> print(count(program))
    2 plain products, 2 products, 4 rescales, 4 plain additions, 2 drops, 2 levels
    """
    if masks is not None and len(masks) != ciphertexts:
        raise WeftError(f"{counted(ciphertexts, 'ciphertext')} have {len(masks)} masks")
    program = evaluation.program(parameters, level)
    builder, outputs = SlotProgramBuilder(ciphertexts), list[int]()
    for number in range(ciphertexts):
        argument = builder.adjust(number, parameters, level if start is None else start, level)
        each = program if masks is None else _with_mask(program, masks[number])
        outputs += builder.inline(each, [argument])
    return builder.program(outputs)


def _with_mask(program: SlotProgram, mask: Floats) -> SlotProgram:
    """Return a program that adds constants only where a mask has ones."""
    instructions = tuple(
        each._replace(arguments=(Constant(each.arguments[0].number, mask),))
        if each.operation == "add_plain" and isinstance(each.arguments[0], Constant)
        else each
        for each in program.instructions
    )
    return replace(program, instructions=instructions)


def lower_pairs(
    operation: PairOperation,
    parameters: Parameters,
    levels: tuple[int, int],
    ciphertexts: int = 1,
    level: int | None = None,
) -> SlotProgram:
    """Return the program of the sum, difference or product of two tensors of one packing.

    The ciphertexts of the first come before those of the second. Operands are adjusted to `level`
    (default: the lower one of theirs). A product takes one level.

    >>> parameters = Parameters(64, 3, security=None)
    >>> print(count(lower_pairs("multiply", parameters, levels=(3, 2), ciphertexts=2)))
    2 plain products, 2 products, 4 rescales, 2 levels
    """
    at = min(levels) if level is None else level
    if at < (operation == "multiply"):
        raise WeftError(
            f"operands at levels {levels[0]} and {levels[1]} leave no level for a product",
            hint="parameters of a greater depth",
        )
    builder, outputs = SlotProgramBuilder(2 * ciphertexts), list[int]()
    for number in range(ciphertexts):
        a = builder.adjust(number, parameters, levels[0], at)
        b = builder.adjust(number + ciphertexts, parameters, levels[1], at)
        if operation == "multiply":
            outputs.append(builder.rescale(builder.mul(a, b)))
        else:
            outputs.append(builder.add(a, b) if operation == "add" else builder.sub(a, b))
    return builder.program(outputs)

"""Random programs of every operator, with their predicted counts and their expected results."""

from math import prod
from typing import NamedTuple

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from tests.ckks.layers import convolutions, moves, packed_layers, pools, products
from tests.ckks.packings import packings

from weft.ckks.activations import fit
from weft.ckks.bsgs import split
from weft.ckks.linear import joined, linear
from weft.ckks.lower import lower, lower_pairs, lower_polynomial, predict, reshard
from weft.ckks.parameters import Parameters
from weft.ckks.polynomial import evaluate
from weft.ckks.slot_program import OperationCounts, SlotProgram
from weft.lang import OPERATORS


class Case(NamedTuple):
    """A program, its predicted counts, its inputs and its expected results."""

    name: str
    parameters: Parameters
    program: SlotProgram
    cost: OperationCounts
    rows: list[np.ndarray]
    answer: list[np.ndarray]
    levels: tuple[int, ...]
    """The levels of the inputs."""
    left: int
    """The level of the results."""


budgets = st.sampled_from([None, None, 1, 3, 8])
"""Limits of the number of rotation keys."""


def kinds(side):
    return st.one_of(
        convolutions(side), convolutions(side), convolutions(), products(), pools(), moves()
    )


def parameters_of(slots, depth):
    return Parameters(2 * slots, depth, security=None)


@st.composite
def linear_cases(draw, sizes, side):
    """A layer from its line: convolutions, matrices, pools, transposes, slices, padding."""
    signature, source, target, x, w, answer, scale = draw(packed_layers(kinds(side), sizes))
    linear_map = linear(signature, source, target, weight=None if w is None else 1)
    diagonal_split = split(linear_map, draw(budgets))
    bias = np.linspace(-1, 1, answer.size).reshape(answer.shape) if draw(st.booleans()) else None
    program = lower(linear_map, diagonal_split, [w], scales=[scale], bias=bias)
    cost = predict(linear_map, diagonal_split, bias is not None)
    expected = target.pack(answer if bias is None else answer + bias)
    parameters = parameters_of(source.slots, draw(st.integers(1, 2)))
    return _case(signature.notation, parameters, program, cost, source.pack(x), expected)


@st.composite
def concatenations(draw, sizes):
    """Several operands, each in its own packing, concatenated."""
    slots, dim = draw(st.sampled_from(sizes)), draw(st.integers(0, 2))
    common = draw(st.lists(st.integers(1, 9), min_size=3, max_size=3))
    shapes = [
        (*common[:dim], draw(st.integers(1, 9)), *common[dim + 1 :])
        for _ in range(draw(st.integers(2, 3)))
    ]
    line = OPERATORS["concatenate"].sign(shapes, {"dimension": dim})
    sources = [draw(packings(shape, slots)) for shape in shapes]
    target = draw(packings(line.result_shapes[0], slots))
    assume(sum(each.ciphertexts for each in sources) * target.ciphertexts <= 300)
    linear_map = joined([linear(line, each, target, operand=n) for n, each in enumerate(sources)])
    diagonal_split = split(linear_map, draw(budgets))
    xs = [numbers(draw, shape) for shape in shapes]
    rows = [row for each, x in zip(sources, xs) for row in each.pack(x)]
    expected = target.pack(np.concatenate(xs, axis=dim))
    program, cost = lower(linear_map, diagonal_split), predict(linear_map, diagonal_split)
    return _case("concatenate", parameters_of(slots, 1), program, cost, rows, expected)


@st.composite
def reshards(draw, sizes):
    """From any packing to any other, perhaps of another shape: reshape and flatten as well."""
    slots = draw(st.sampled_from(sizes))
    shape = tuple(draw(st.lists(st.integers(1, 12), min_size=1, max_size=4)))
    source = draw(packings(shape, slots))
    if draw(st.booleans()):
        place = draw(st.integers(0, len(shape) - 1))
        shape = (*shape[:place], prod(shape[place:]))
    target = draw(packings(shape, slots))
    assume(source.ciphertexts * target.ciphertexts <= 300)
    repacking = reshard(source, target, draw(budgets))
    x = numbers(draw, source.shape)
    rows, expected = source.pack(x), target.pack(x.reshape(shape))
    parameters = parameters_of(slots, 1)
    return _case("reshard", parameters, repacking.program, repacking.cost, rows, expected)


@st.composite
def polynomials(draw, sizes):
    """An activation of every element, the slots without one left at zero."""
    slots, depth = draw(st.sampled_from(sizes)), draw(st.integers(5, 6))
    packing = draw(image_packings(slots))
    function = draw(st.sampled_from(["relu", "gelu", "silu", np.square]))
    degree = 2 if function is np.square else draw(st.integers(2, 9))
    activation = fit(function, degree, -3, 4)
    evaluation = evaluate(activation, fold=draw(st.booleans()))
    parameters, level = parameters_of(slots, depth), draw(st.integers(5, depth))
    x = np.random.default_rng(draw(st.integers(0, 99))).uniform(-3, 4, packing.shape)
    given = evaluation.factor * x + evaluation.shift if evaluation.folded else x
    masks = packing.pack(np.ones(packing.shape))
    program = lower_polynomial(evaluation, parameters, level, packing.ciphertexts, masks)
    count = packing.ciphertexts
    cost = evaluation.counts.repeated(count)
    expected = packing.pack(activation(x))
    case = _case("polynomial", parameters, program, cost, packing.pack(given), expected)
    return case._replace(levels=(level,) * count, left=level - evaluation.levels)


@st.composite
def pairs(draw, sizes):
    """Sums, differences and products of two tensors, perhaps at different levels."""
    slots, packing = (size := draw(st.sampled_from(sizes))), draw(image_packings(size))
    operation = draw(st.sampled_from(["add", "subtract", "multiply"]))
    levels = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    one, two = numbers(draw, packing.shape), numbers(draw, packing.shape)
    count, parameters = packing.ciphertexts, parameters_of(slots, 4)
    program = lower_pairs(operation, parameters, levels, count)
    above, times = abs(levels[0] - levels[1]), int(operation == "multiply")
    cost = OperationCounts(
        plain_products=count * (above > 0),
        products=count * times,
        rescales=count * ((above > 0) + times),
        additions=count * (1 - times),
        drops=count * (above > 1),
        levels=(above > 0) + times,
    )
    expected = packing.pack(
        {"add": np.add, "subtract": np.subtract}.get(operation, np.multiply)(one, two)
    )
    rows = [*packing.pack(one), *packing.pack(two)]
    case = _case(operation, parameters, program, cost, rows, expected)
    left = min(levels) - (operation == "multiply")
    return case._replace(levels=(levels[0],) * count + (levels[1],) * count, left=left)


@st.composite
def image_packings(draw, slots):
    shape = (draw(st.integers(1, 6)), draw(st.integers(1, 12)), draw(st.integers(1, 12)))
    packing = draw(packings(shape, slots))
    assume(packing.ciphertexts <= 12)
    return packing


def cases(sizes, side=9):
    """All of them; linear layers more often."""
    layers = linear_cases(sizes, side)
    others = concatenations(sizes), reshards(sizes), polynomials(sizes), pairs(sizes)
    return st.one_of(layers, layers, layers, *others)


def numbers(draw, shape):
    return np.random.default_rng(draw(st.integers(0, 99))).normal(size=shape)


def _case(name, parameters, program, cost, rows, answer):
    depth = parameters.depth
    levels = (depth,) * len(rows)
    return Case(str(name), parameters, program, cost, rows, answer, levels, depth - cost.levels)

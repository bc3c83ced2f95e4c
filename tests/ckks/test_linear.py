"""Linear maps: the diagonals are those of the matrix, and what the line does not allow."""

import numpy as np
import pytest
from hypothesis import given
from tests.ckks.layers import packed_layers, run

from weft.ckks.bsgs import split
from weft.ckks.linear import joined, linear
from weft.ckks.lower import lower
from weft.ckks.packing import Packing
from weft.ckks.plaintext import Lookup
from weft.errors import WeftError
from weft.lang import OPERATORS, Signature


@given(packed_layers())
def test_the_diagonals_are_those_of_pairs_that_are_related(layer):
    signature, source, target, _, w, _, _ = layer
    linear_map = linear(signature, source, target, weight=None if w is None else 1)
    sources = (source.reshaped(signature.operand_shapes[0]) or source).numbers()
    targets = (target.reshaped(signature.result_shapes[0]) or target).numbers()
    pairs = related(signature)
    expected = dict[tuple[int, int], set[int]]()
    for given_, made in pairs:
        ins = [(j, s) for j, s in np.argwhere(sources == given_).tolist() if s < source.period]
        for j, s in ins:
            for i, t in np.argwhere(targets == made).tolist():
                expected.setdefault((i, j), set()).add((s - t) % source.period)
    for out in set(range(linear_map.outputs)) - {i for i, _ in expected}:
        expected[out, 0] = {0}
    got = {block: set(linear_map.sets[key].tolist()) for block, key in linear_map.blocks.items()}
    assert got == expected
    assert linear_map.products == sum(map(len, expected.values()))


def related(signature):
    """All pairs of elements that some point of the index space relates, one by one."""
    line, sizes = signature.notation, dict(signature.sizes)
    shapes = signature.operand_shapes[0], signature.result_shapes[0]
    pairs = set()
    for point in np.ndindex(*sizes.values()):
        at = dict(zip(sizes, point))
        made = element(line.results[0], at, (), shapes[1])
        windows = [row.extent for row in line.operands[0]]
        for window in np.ndindex(*windows):
            given_ = element(line.operands[0], at, window, shapes[0])
            if given_ is not None and made is not None:
                pairs.add((given_, made))
    return pairs


def element(rows, at, window, shape):
    number = 0
    for dim, row in enumerate(rows):
        x = sum(a * at[name] for name, a in row.terms) + row.offset
        x += window[dim] if window else 0
        if x % row.divisor or not 0 <= x // row.divisor < shape[dim]:
            return None
        number = number * shape[dim] + x // row.divisor
    return number


def test_pairs_that_are_related_twice_add_their_weights():
    line = Signature.of("i+u+v, u v -> i  sum: u v", [(6,), (2, 3)], sizes={"i": 3})
    source, target = Packing.vector(6, 16), Packing.vector(3, 16, stride=2)
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=6), rng.normal(size=(2, 3))
    linear_map = linear(line, source, target, weight=1)
    rows, _ = run(lower(linear_map, split(linear_map), [w]), source, x)
    answer = [sum(x[i + u + v] * w[u, v] for u in range(2) for v in range(3)) for i in range(3)]
    assert np.abs(np.array(rows) - target.pack(answer)).max() < 1e-12


def test_a_weight_that_is_summed_by_itself():
    line = Signature.of("i, u i -> i  sum: u", [(4,), (3, 4)])
    packing = Packing.vector(4, 16)
    x, w = np.arange(4.0), np.arange(12.0).reshape(3, 4)
    linear_map = linear(line, packing, packing, weight=1)
    rows, _ = run(lower(linear_map, split(linear_map), [w]), packing, x)
    assert np.abs(packing.unpack(rows) - x * w.sum(axis=0)).max() < 1e-12


def test_a_flattened_image_goes_into_a_linear_layer():
    rng = np.random.default_rng(1)
    x, w = rng.normal(size=(5, 3, 3)), rng.normal(size=(45, 7))
    line = OPERATORS["linear"].sign([(45,), (45, 7)], {})
    for source in (Packing.tiled((5, 3, 3), 64), Packing.multiplexed((5, 3, 3), 64, 2)):
        target = Packing.vector(7, 64, stride=3)
        linear_map = linear(line, source, target, weight=1)
        rows, _ = run(lower(linear_map, split(linear_map), [w]), source, x)
        assert np.abs(target.unpack(rows) - x.ravel() @ w).max() < 1e-12


def test_a_concatenation_has_several_operands():
    shapes = [(3, 4, 4), (5, 4, 4)]
    line = OPERATORS["concatenate"].sign(shapes, {"dimension": 0})
    sources = [Packing.tiled(shapes[0], 64), Packing.multiplexed(shapes[1], 64, 2)]
    target = Packing.dense((8, 4, 4), 64)
    parts = [linear(line, each, target, operand=n) for n, each in enumerate(sources)]
    linear_map = joined(parts)
    assert (linear_map.inputs, linear_map.outputs) == (3, 2)
    rng = np.random.default_rng(2)
    xs = [rng.normal(size=shape) for shape in shapes]
    rows = [row for each, x in zip(sources, xs) for row in each.pack(x)]
    ordered = Packing.dense((3, 64), 64)  # three ciphertexts as they are
    made, _ = run(lower(linear_map, split(linear_map)), ordered, np.array(rows))
    assert np.abs(target.unpack(made) - np.concatenate(xs)).max() < 1e-12


def test_a_large_component_is_searched_as_a_table_is_read():
    n = 3000
    line = Signature.of("i -> i", [(n,)])
    linear_map = linear(line, Packing.vector(n, 4096), Packing.vector(n, 4096))
    lookup = Lookup(linear_map.parts[0].components[0])
    pairs = np.array([0, n + 1 + 1, 5 * (n + 1) + 6, n * (n + 1) + n])
    (searched,) = lookup.addresses(pairs)
    assert searched.tolist() == lookup.tables[0][pairs].tolist()


def test_a_result_without_contributions_is_zero():
    attributes = {"edge_padding_low": (8,), "edge_padding_high": (0,), "interior_padding": (0,)}
    line = OPERATORS["pad"].sign([(4,), ()], attributes)
    source, target = Packing.vector(4, 8), Packing.vector(12, 8)
    linear_map = linear(line, source, target)
    assert sorted(linear_map.blocks) == [(0, 0), (1, 0)]
    rows, _ = run(lower(linear_map, split(linear_map)), source, np.arange(1.0, 5))
    assert target.unpack(rows).tolist() == [0.0] * 8 + [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("line", "shapes", "sizes", "message"),
    [
        ("i k -> i  max: k", [(2, 3)], {}, "'k' is reduced by max, which is not linear"),
        ("i [k] -> i [r<k]", [(2, 3)], {"r": 2}, "does not say which elements it reads"),
        ("i -> i, i", [(2,)], {}, "a linear map has one result; 2 in i -> i, i"),
    ],
)
def test_lines_that_are_not_linear(line, shapes, sizes, message):
    signature = Signature.of(line, shapes, sizes)
    source, target = Packing.dense(shapes[0], 16), Packing.dense(signature.result_shapes[0], 16)
    with pytest.raises(WeftError) as caught:
        linear(signature, source, target)
    assert message in str(caught.value)


def test_refusals():
    line = Signature.of("k, k n -> n  sum: k", [(6,), (6, 2)])
    source, target = Packing.vector(6, 16), Packing.vector(2, 16)
    with pytest.raises(WeftError, match="an operand in 16 slots has a result in 8"):
        linear(line, source, Packing.vector(2, 8), weight=1)
    with pytest.raises(WeftError, match=r"the operand has shape \[6\] and is packed as \[5\]"):
        linear(line, Packing.vector(5, 16), target, weight=1)
    linear_map = linear(line, source, target, weight=1)
    with pytest.raises(WeftError, match=r"a weight of shape \[6, 2\] is given as \[2\]"):
        lower(linear_map, split(linear_map), [np.ones(2)])
    other = linear(line, source, Packing.vector(2, 16, stride=2), weight=1)
    with pytest.raises(WeftError, match="maps to different packings of a result"):
        joined([linear_map, other])
    outside = Signature.of("k, k+1 -> k", [(3,), (3,)])
    with pytest.raises(WeftError, match=r"'k\+1' is not a single element of a weight of 3"):
        linear(outside, Packing.vector(3, 16), Packing.vector(3, 16), weight=1)

"""Attributes and operands that our own operators refuse, and their operation counts."""

import json

import numpy as np
import pytest

from weft import Graph, Operator, Tensor, WeftError
from weft.lang import OPERATORS, Block, Value
from weft.lang.arithmetic import apply_all
from weft.lang.graph_json import from_json, to_json


def sign(name, *shapes, **attributes):
    return OPERATORS.find(name).sign(shapes, attributes)


@pytest.mark.parametrize(
    ("name", "shapes", "attributes", "message"),
    [
        ("softmax", [(8, 4)], {"dimension": 2}, "[8, 4] has no dimension 2"),
        ("log_softmax", [(8,)], {"dimension": -2}, "[8] has no dimension -2"),
        ("cumsum", [()], {"dimension": 0}, "[] has no dimension 0"),
        ("sort", [(8, 4)], {"dimension": 5}, "[8, 4] has no dimension 5"),
        ("topk", [(8, 4)], {"k": 5}, "expected k from 0 to the last size of [8, 4], got 5"),
        ("topk", [(8, 4)], {"k": -1}, "expected k from 0 to the last size of [8, 4], got -1"),
        ("topk", [()], {"k": 1}, "expected k from 0 to the last size of [], got 1"),
        (
            "polynomial",
            [(8,)],
            {"coefficients": ()},
            "a polynomial has 0 coefficients, 1 operands",
        ),
        (
            "polynomial",
            [(8,)],
            {"coefficients": (1.0,), "low": 2.0},
            "expected a range from low to high, got 2.0 to None",
        ),
        (
            "polynomial",
            [(8,)],
            {"coefficients": (1.0,), "low": 2.0, "high": 2.0},
            "expected a range from low to high, got 2.0 to 2.0",
        ),
        (
            "convolution",
            [(1, 1, 4)],
            {},
            "a convolution takes an input, a kernel and a bias, got 1",
        ),
        ("max_pool", [(8,)], {"window": (2, 2)}, "a window (2, 2) does not slide over [8]"),
        ("max_pool", [(8,)], {"window": ()}, "a window () does not slide over [8]"),
        ("max_pool", [(8,)], {"window": (0,)}, "window (0,): expected 1 numbers of at least 1"),
        (
            "avg_pool",
            [(8, 8)],
            {"window": (2, 2), "strides": (2,)},
            "strides (2,): expected 2 numbers of at least 1",
        ),
        (
            "avg_pool",
            [(8,)],
            {"window": (2,), "padding": (1, -1)},
            "padding (1, -1): expected 2 numbers of at least 0",
        ),
        (
            "embedding",
            [(8,), (3,)],
            {},
            "embedding takes a table of rank 2 and indices, got [[8], [3]]",
        ),
        (
            "rms_norm",
            [(8, 4), (4,), (4,)],
            {},
            "a norm takes an array and up to 1 vectors, got [[8, 4], [4], [4]]",
        ),
        ("layer_norm", [()], {}, "a norm takes an array and up to 2 vectors, got [[]]"),
        (
            "layer_norm",
            [(8, 4), (5,)],
            {},
            "dimension 0 of operand 1 has size 5, and 'k' has size 4 elsewhere",
        ),
        (
            "attention",
            [(2, 4), (3, 4)],
            {},
            "attention takes queries, keys and values of one rank, got [[2, 4], [3, 4]]",
        ),
        (
            "attention",
            [(5, 2, 4), (2, 3, 4), (2, 3, 4)],
            {},
            "5 heads of queries cannot share 2 heads of keys",
        ),
        (
            "attention",
            [(4, 2, 4), (2, 3, 4), (1, 3, 4)],
            {},
            "dimension 0 of operand 2 has size 1, and 'h' has size 2 elsewhere",
        ),
    ],
)
def test_invalid_attributes_are_refused(name, shapes, attributes, message):
    with pytest.raises(WeftError) as refusal:
        sign(name, *shapes, **attributes)
    assert str(refusal.value).splitlines()[0] == message
    assert any(f"while applying {name} to" in note for note in refusal.value.__notes__)


ROWS = {"update_window_dims": (1,), "inserted_window_dims": (0,), "index_vector_dim": 1}
POOL = {"window_dimensions": (2,), "window_strides": (2,)}


@pytest.mark.parametrize(
    ("name", "shapes", "attributes", "message"),
    [
        (
            "reduce",
            [(8,), ()],
            {"dimensions": (0,), "region": "custom"},
            "a reduction by a custom region cannot be run box by box",
        ),
        (
            "reduce_window",
            [(8,), ()],
            POOL | {"region": "custom"},
            "windows combined by a custom region cannot be run box by box",
        ),
        (
            "select_and_scatter",
            [(8,), (4,), ()],
            POOL | {"comparison_direction": "EQ"},
            "windows that select by EQ cannot be run box by box",
        ),
        (
            "scatter",
            [(8, 4), (3, 1), (3, 4)],
            ROWS | {"region": "custom"},
            "a scatter by a custom region cannot be run box by box",
        ),
        (
            "scatter",
            [(8, 4), (3, 1), (3, 4)],
            ROWS,
            "a scatter needs scatter_dims_to_operand_dims",
        ),
        (
            "sort",
            [(8,)],
            {"dimension": 0, "comparison_direction": "custom"},
            "an order by custom cannot be run box by box",
        ),
    ],
)
def test_operators_without_kernels_are_planned_and_refused_at_run_time(
    name, shapes, attributes, message
):
    line = sign(name, *shapes, **attributes)
    block = Block(np, line, attributes, line.space)
    with pytest.raises(WeftError, match=f"^{message}$"):
        OPERATORS[name].kernel(block, *(np.zeros(shape, int) for shape in shapes))


@pytest.mark.parametrize(
    ("name", "shapes", "attributes", "flops"),
    [
        ("attention", [(2, 3, 8, 16), (2, 3, 9, 16), (2, 3, 9, 4)], {}, 432 * (2 * 20 + 5)),
        ("attention", [(8, 16), (9, 16), (9, 4)], {}, 72 * (2 * 20 + 5)),
        ("fft", [(3, 8)], {"fft_length": (8,)}, 3 * 5 * 8 * 3),
        ("fft", [(3, 8)], {"fft_length": (8,), "fft_type": "RFFT"}, 3 * 5 * 8 * 3 // 2),
        ("sort", [(3, 8)], {"dimension": -1}, 3 * 8 * 3),
        ("sort", [(8,)], {"dimension": 0}, 8 * 3),
        ("topk", [(3, 8)], {"k": 2}, 3 * 8 * 3),
        ("cholesky", [(5, 6, 6)], {}, 5 * 6**3 // 3),
        ("triangular_solve", [(6, 6), (6, 4)], {"left_side": True}, 6 * 6 * 4),
        ("max_pool", [(3, 8)], {"window": (2,)}, 3 * 4 * 2),
        ("reduce_window", [(8,), ()], POOL, 4 * 2),
        ("select_and_scatter", [(8,), (4,), ()], POOL, 2 * 4 * 2),
        ("embedding", [(50, 8), (4,)], {}, 0),
        ("scatter", [(8, 4), (3, 1), (3, 4)], ROWS, 12),
        ("softmax", [(3, 8)], {}, 3 * 8 * 5),
    ],
)
def test_operations_are_counted(name, shapes, attributes, flops):
    operator = OPERATORS.find(name)
    line = operator.sign(shapes, attributes)
    assert operator.count_flops(line, line.space, attributes) == flops


def test_results_have_their_dtypes():
    def dtypes(name, *given, **attributes):
        return list(OPERATORS[name].dtypes(given, attributes))

    assert dtypes("topk", "float32") == ["float32", "int64"]
    assert dtypes("sort", "int32", "float32") == ["int32", "float32"]
    assert dtypes("fft", "float64", fft_type="RFFT") == ["complex128"]
    assert dtypes("fft", "complex64", fft_type="IRFFT") == ["float32"]
    assert dtypes("fft", "complex64", fft_type="FFT") == ["complex64"]
    assert dtypes("embedding", "float32", "int64") == ["float32"]
    assert dtypes("gather", "float32", "int64") == ["float32"]


@pytest.mark.parametrize(
    ("name", "shapes", "attributes", "message", "hint"),
    [
        (
            "layer_norm",
            [(8, 4)],
            {"epsilon": 1.0},
            "has no attribute epsilon",
            "did you mean eps? (its attributes are eps, dtype)",
        ),
        ("relu", [(8,)], {"n": 2}, "relu has no attribute n", "its attributes are dtype"),
        (
            "softmax",
            [(8,)],
            {"dim": 0},
            "no attribute dim",
            "did you mean dimension? (its attributes are dimension, dtype)",
        ),
        (
            "sum_dim",
            [(8,)],
            {"dimensions": (0,), "keepdims": 1},
            "keepdims of sum_dim must be True",
            "",
        ),
        ("topk", [(8,)], {"k": 2.5}, "k of topk must be an integer, got 2.5", ""),
        ("topk", [(8,)], {"k": True}, "k of topk must be an integer, got True", ""),
        ("layer_norm", [(8,)], {"eps": "x"}, "eps of layer_norm must be a number, got 'x'", ""),
        ("einsum", [(8,)], {"equation": 3}, "equation of einsum must be a string, got 3", ""),
    ],
)
def test_attributes_are_those_of_the_operator(name, shapes, attributes, message, hint):
    with pytest.raises(WeftError, match=message) as caught:
        sign(name, *shapes, **attributes)
    assert f"hint: {hint}" in caught.value.__notes__ or not hint
    arrays = [np.ones(shape, "float32") for shape in shapes]
    for operands in (map(Tensor, arrays), [Tensor(array).trace() for array in arrays]):
        with pytest.raises(WeftError, match=message):
            apply_all(name, *operands, **attributes)
    graph = Graph([Value(f"x{n}", s) for n, s in enumerate(shapes)], [], ["x0"])
    operands = [f"x{n}" for n in range(len(shapes))]
    said = {"operator": name, "operands": operands, "results": [{"name": "y"}]}
    text = json.loads(to_json(graph)) | {"applications": [said | {"attributes": attributes}]}
    with pytest.raises(WeftError, match=r"applications\[0\]: .*" + message):
        from_json(json.dumps(text))


def test_attributes_and_index_dimensions_have_separate_names():
    scale = Operator("scale", "n -> n", lambda block, x: x * 2)
    with pytest.raises(WeftError, match="scale has no attribute n") as caught:
        scale.sign([(8,)], {"n": 2})
    assert "hint: n is an index dimension of scale: n -> n" in caught.value.__notes__
    with pytest.raises(WeftError, match="an attribute n and an index dimension of that name"):
        Operator("scale", "n -> n", attributes={"n": int})
    window = Operator("window", "s*y+u -> y  sum: u")
    with pytest.raises(WeftError, match="window has no attribute u"):
        window.sign([(9,)], {"s": 2, "u": 3})
    with pytest.raises(WeftError, match="attribute s of window must be an integer"):
        window.sign([(9,)], {"s": 2.5})


def test_own_operators_declare_their_attributes():
    kernel = lambda block, x: x * block.attributes.get("factor", 1)  # noqa: E731
    scale = Operator("scale", "n -> n", kernel, attributes={"factor": float})
    assert scale.sign([(8,)], {"factor": 2.5}).result_shapes == ((8,),)
    with pytest.raises(WeftError, match="factor of scale must be a number"):
        scale.sign([(8,)], {"factor": "much"})
    with pytest.raises(WeftError, match="scale has no attribute faktor") as caught:
        scale.sign([(8,)], {"faktor": 2.5})
    assert "hint: did you mean factor? (its attributes are factor)" in caught.value.__notes__
    Operator("scale", "n -> n", kernel, attributes=["factor"]).sign([(8,)], {"factor": "any"})
    Operator("scale", "n -> n", kernel, attributes=None).sign([(8,)], {"anything": 1})
    with pytest.raises(WeftError, match="scale has no attribute factor") as caught:
        Operator("scale", "n -> n", kernel).sign([(8,)], {"factor": 2})
    assert "attributes=[...]" in caught.value.__notes__[0]

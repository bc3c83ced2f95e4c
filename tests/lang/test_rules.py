"""The rules that follow from the lines of the library are those of Shardy, inside jaxlib."""

import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jax._src.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir, passmanager

from weft.errors import WeftError
from weft.lang import OPERATORS, FactorRule, Signature, factor_rule, operators

PIPELINE = "builtin.module(func.func(sdy-populate-op-sharding-rules))"
WORDS = {"reduction": "reduced", "need_replication": "whole", "permutation": "permuted"}
FIRST = '\n^bb0({}):\n "stablehlo.return"({}) : ({}) -> ()\n'


class Case(NamedTuple):
    """An application for both sides: its shapes and attributes, and the rest of its MLIR."""

    operator: str
    shapes: list[tuple[int, ...]]
    attributes: dict[str, Any]
    mlir: str = ""
    """The attributes in MLIR."""
    regions: str = ""
    types: tuple[str, ...] = ()
    """The element types of operands and results, where they are not f32."""


class Rule(NamedTuple):
    """A rule in one spelling: tensors of dimensions of factors, and the size and kind of each."""

    tensors: list[list[list[str]]]
    sizes: dict[str, int]
    kinds: dict[str, str]

    def canonical(self) -> tuple[Any, ...]:
        """Factors numbered as they come."""
        numbers: dict[str, int] = {}
        for tensor in self.tensors:
            for dim in tensor:
                for name in dim:
                    numbers.setdefault(name, len(numbers))
        shape = [[[numbers[name] for name in dim] for dim in tensor] for tensor in self.tensors]
        return shape, [(self.sizes[name], self.kinds[name]) for name in numbers]


@cache
def context() -> ir.Context:
    return jax_mlir.make_ir_context()


def tensor_type(shape: tuple[int, ...], element: str) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}{element}>"


def module_of(case: Case, results: tuple[tuple[int, ...], ...]) -> str:
    elements = case.types or ("f32",) * (len(case.shapes) + len(results))
    types = list(map(tensor_type, [*case.shapes, *results], elements))
    given, made = types[: len(case.shapes)], types[len(case.shapes) :]
    names = [f"%a{number}" for number in range(len(given))]
    arguments = ", ".join(f"{name}: {kind}" for name, kind in zip(names, given))
    return (
        f"func.func @main({arguments}) {{\n"
        f'  %r:{len(made)} = "stablehlo.{case.operator}"({", ".join(names)}) {case.regions} '
        f"{{{case.mlir}}} : ({', '.join(given)}) -> ({', '.join(made)})\n  return\n}}"
    )


def rule_of_shardy(case: Case, results: tuple[tuple[int, ...], ...]) -> Rule:
    """The rule of jaxlib, with each blocked factor given to its dimensions one by one."""
    with context():
        module = ir.Module.parse(module_of(case, results))
        passmanager.PassManager.parse(PIPELINE).run(module.operation)
        operation = module.body.operations[0].regions[0].blocks[0].operations[0]
        text = str(operation.attributes["sdy.sharding_rule"])
    mapping = text[text.index("<") + 1 :].partition("{")[0]
    tensors = [
        [re.findall(r"[a-z](?:_\d+)?", dim) for dim in tensor.split(",") if dim.strip()]
        for tensor in re.findall(r"\[([^\]]*)\]", mapping)
    ]
    sizes = {name: int(size) for name, size in re.findall(r"(\w+)=(\d+)", text)}
    kinds = dict.fromkeys(sizes, "parallel")
    found = {
        word: set(re.findall(r"\w+", names))
        for word, names in re.findall(r"(\w+)=\{([^}]*)\}", text)
    }
    for word, kind in WORDS.items():
        kinds |= dict.fromkeys(found.get(word, ()), kind)
    for number, tensor in enumerate(tensors):
        for dim, names in enumerate(tensor):
            if names[0] in found.get("blocked_propagation", ()):
                own = f"{names[0]}@{number}.{dim}"
                tensor[dim], sizes[own], kinds[own] = [own], sizes[names[0]], "whole"
    return Rule(tensors, sizes, kinds)


def spelled(rule: FactorRule) -> Rule:
    tensors = [
        [[rule.names[factor] for factor in dim] for dim in tensor]
        for tensor in (*rule.operands, *rule.results)
    ]
    return Rule(tensors, dict(zip(rule.names, rule.sizes)), dict(zip(rule.names, rule.kinds)))


def check(case: Case) -> None:
    signature = OPERATORS.find(case.operator).sign(case.shapes, case.attributes)
    ours = spelled(factor_rule(signature))
    theirs = rule_of_shardy(case, signature.result_shapes)
    note = f"{case}\n{signature}\n{factor_rule(signature)}\n{theirs}"
    (shape, factors), (wanted, expected) = ours.canonical(), theirs.canonical()
    assert shape == wanted, note
    assert factors == expected, note


def listed(values: Any) -> str:
    return f"[{', '.join(map(str, values))}]"


def integers(name: str, values: Any) -> str:
    values = list(values)
    return f"{name} = array<i64{': ' * bool(values)}{', '.join(map(str, values))}>"


def pairs(name: str, values: Any) -> str:
    text = listed([listed(pair) for pair in zip(values[::2], values[1::2])])
    return f"{name} = dense<{text}> : tensor<{len(values) // 2}x2xi64>"


def region(count: int, start: int = 0) -> str:
    """A region of a reduction that knows no arithmetic: it returns the first half, or another."""
    names = [f"%b{number}" for number in range(2 * count)]
    return (
        "{"
        + FIRST.format(
            ", ".join(f"{name}: tensor<f32>" for name in names),
            ", ".join(names[start : start + count]),
            ", ".join(["tensor<f32>"] * count),
        )
        + "}"
    )


ADD = (
    "{\n^bb0(%x: tensor<f32>, %y: tensor<f32>):\n %s = stablehlo.add %x, %y : tensor<f32>\n"
    " stablehlo.return %s : tensor<f32>\n}"
)
SELECT = (
    "{\n^bb0(%x: tensor<f32>, %y: tensor<f32>):\n %s = stablehlo.compare LT, %x, %y : "
    "(tensor<f32>, tensor<f32>) -> tensor<i1>\n stablehlo.return %s : tensor<i1>\n}"
)

SIZES = st.sampled_from([1, 1, 2, 3, 4, 5, 6, 8, 12])


def shapes(least: int = 0, most: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(SIZES, min_size=least, max_size=most).map(tuple)


def subsets(rank: int) -> st.SearchStrategy[tuple[int, ...]]:
    every = st.lists(st.booleans(), min_size=rank, max_size=rank)
    return every.map(lambda chosen: tuple(dim for dim, yes in enumerate(chosen) if yes))


POINTWISE = [
    *("abs", "add", "and", "atan2", "cbrt", "ceil", "compare", "complex", "convert", "cosine"),
    *("count_leading_zeros", "divide", "exponential", "exponential_minus_one", "floor"),
    *("imag", "is_finite", "log", "log_plus_one", "logistic", "maximum", "minimum"),
    *("multiply", "negate", "not", "or", "popcnt", "power", "real", "reduce_precision"),
    *("remainder", "round_nearest_afz", "round_nearest_even", "rsqrt", "shift_left"),
    *("shift_right_arithmetic", "shift_right_logical", "sign", "sine", "sqrt", "subtract"),
    *("tan", "tanh", "xor"),
]
UNARY = {"real": "complex<f32>,f32", "imag": "complex<f32>,f32", "is_finite": "f32,i1"}
UNARY |= dict.fromkeys(("count_leading_zeros", "popcnt", "not"), "i32,i32") | {
    "convert": "f32,bf16"
}
BINARY = {"compare": "f32,f32,i1", "complex": "f32,f32,complex<f32>"}
BINARY |= dict.fromkeys(
    ["add", "atan2", "divide", "maximum", "minimum", "multiply", "power", "remainder", "subtract"]
)
BINARY |= dict.fromkeys(["and", "or", "xor"], "i32,i32,i32")
BINARY |= dict.fromkeys(["left", "right_arithmetic", "right_logical"], "i32,i32,i32")
BINARY = {("shift_" * (n.startswith(("left", "right"))) + n): t for n, t in BINARY.items()}
TEXT = {
    "compare": "comparison_direction = #stablehlo<comparison_direction LT>",
    "reduce_precision": "exponent_bits = 5 : i32, mantissa_bits = 2 : i32",
}


@pytest.mark.parametrize("name", POINTWISE)
@given(shape=shapes())
def test_pointwise(name, shape):
    types = BINARY.get(name) or UNARY.get(name) or ""
    operands = [shape] * (2 if name in BINARY else 1)
    check(Case(name, operands, {}, TEXT.get(name, ""), types=tuple(filter(None, types.split(",")))))
    assert OPERATORS[name].passes == "both"


@given(shape=shapes(), scalar=st.booleans())
def test_select(shape, scalar):
    types = ("i1", "f32", "f32", "f32")
    check(Case("select", [() if scalar else shape, shape, shape], {}, types=types))


@given(shape=shapes(), low=st.booleans(), high=st.booleans())
def test_clamp(shape, low, high):
    check(Case("clamp", [() if low else shape, shape, () if high else shape], {}))


@st.composite
def products(draw):
    batch, contracted, left, right = (draw(shapes(most=2)) for _ in range(4))
    sides, attributes = [], {}
    for side, free in (("lhs", left), ("rhs", right)):
        named = [
            *(("b", n) for n in range(len(batch))),
            *(("k", n) for n in range(len(contracted))),
        ]
        order = draw(st.permutations([*named, *(("f", n) for n in range(len(free)))]))
        sizes = {"b": batch, "k": contracted, "f": free}
        sides.append(tuple(sizes[kind][number] for kind, number in order))
        for word, kind in (("batching", "b"), ("contracting", "k")):
            found = [order.index(name) for name in named if name[0] == kind]
            attributes[f"{side}_{word}_dimensions"] = tuple(found)
    numbers = ", ".join(f"{key} = {listed(dims)}" for key, dims in attributes.items())
    text = f"dot_dimension_numbers = #stablehlo.dot<{numbers}>"
    return Case("dot_general", sides, attributes, text)


@given(products())
def test_dot_general(case):
    check(case)


@given(left=shapes(most=1), right=shapes(most=1), size=SIZES)
def test_dot(left, right, size):
    check(Case("dot", [(*left, size), (size, *right)], {}))


@st.composite
def reshapes(draw):
    """Two shapes that group the same prime factors in two ways."""
    primes = draw(st.lists(st.sampled_from([2, 2, 3, 5]), max_size=6))

    def grouped() -> tuple[int, ...]:
        order, dims = draw(st.permutations(primes)), [1] * draw(st.integers(bool(primes), 4))
        for prime in order:
            dims[draw(st.integers(0, len(dims) - 1))] *= prime
        return tuple(dims)

    return Case("reshape", [grouped()], {"result_shape": grouped()})


@given(reshapes())
def test_reshape(case):
    check(case)
    assert OPERATORS["reshape"].passes == "both"


def test_reshapes_of_empty_and_mismatched_shapes():
    empty = OPERATORS["reshape"].sign([(0, 4)], {"result_shape": (8, 0)})
    assert str(empty.notation) == "[i0] [i1] -> [j0] [j1]"
    with pytest.raises(WeftError, match=r"\[8, 3\] has 24 elements and \[5, 5\] has 25"):
        OPERATORS["reshape"].sign([(8, 3)], {"result_shape": (5, 5)})


def test_missing_dimensions_are_refused():
    numbers = {"lhs_contracting_dimensions": (2,), "rhs_contracting_dimensions": (0,)}
    with pytest.raises(WeftError, match="there is no dimension 2 among 2"):
        OPERATORS["dot_general"].sign([(8, 4), (4, 2)], numbers)


@given(shape=shapes(), data=st.data())
def test_transpose(shape, data):
    order = tuple(data.draw(st.permutations(range(len(shape)))))
    check(Case("transpose", [shape], {"permutation": order}, integers("permutation", order)))


@given(result=shapes(), data=st.data())
def test_broadcast_in_dim(result, data):
    dims = data.draw(subsets(len(result)))
    dims = tuple(data.draw(st.permutations(dims)))
    operand = tuple(data.draw(st.sampled_from([1, result[dim]])) for dim in dims)
    attributes = {"broadcast_dimensions": dims, "result_shape": result}
    check(Case("broadcast_in_dim", [operand], attributes, integers("broadcast_dimensions", dims)))


@given(shape=shapes(), data=st.data())
def test_reverse(shape, data):
    dims = data.draw(subsets(len(shape)))
    check(Case("reverse", [shape], {"dimensions": dims}, integers("dimensions", dims)))


@given(shape=shapes(), data=st.data())
def test_slice(shape, data):
    keys = ("start_indices", "limit_indices", "strides")
    rows = []
    for size in shape:
        start = data.draw(st.integers(0, size - 1))
        limit = data.draw(st.integers(start, size))
        rows.append((start, limit, data.draw(st.integers(1, 4))))
    columns = list(zip(*rows)) or [(), (), ()]
    text = ", ".join(map(integers, keys, columns))
    check(Case("slice", [shape], dict(zip(keys, columns)), text))


@given(shape=shapes(), data=st.data())
def test_pad(shape, data):
    keys = ("edge_padding_low", "edge_padding_high", "interior_padding")
    rows = []
    for size in shape:
        inner = data.draw(st.integers(0, 2))
        low = data.draw(st.integers(-2, 3))
        high = data.draw(st.integers(-2, 3))
        made = (size - 1) * (inner + 1) + 1 + low + high
        assume(made >= 0)
        rows.append((low, high, inner))
    columns = list(zip(*rows)) or [(), (), ()]
    text = ", ".join(map(integers, keys, columns))
    check(Case("pad", [shape, ()], dict(zip(keys, columns)), text))


@given(shape=shapes(least=1), data=st.data())
def test_concatenate(shape, data):
    dim = data.draw(st.integers(0, len(shape) - 1))
    parts = data.draw(st.lists(SIZES, min_size=1, max_size=3))
    operands = [(*shape[:dim], part, *shape[dim + 1 :]) for part in parts]
    check(Case("concatenate", operands, {"dimension": dim}, f"dimension = {dim} : i64"))


@given(shape=shapes(), wide=st.booleans())
def test_bitcast_convert(shape, wide):
    narrow = (*shape, 4)
    given_, made, types = (narrow, shape, ("i8", "f32")) if wide else (shape, narrow, ("f32", "i8"))
    check(Case("bitcast_convert", [given_], {"result_shape": made}, types=types))
    check(Case("bitcast_convert", [shape], {}, types=("f32", "i32")))


@given(shape=shapes(), data=st.data())
def test_dynamic_slices(shape, data):
    sizes = tuple(data.draw(st.integers(1, size)) for size in shape)
    places, starts = [()] * len(shape), ("i32",) * len(shape)
    text = integers("slice_sizes", sizes)
    types = ("f32", *starts, "f32")
    check(Case("dynamic_slice", [shape, *places], {"slice_sizes": sizes}, text, types=types))
    types = ("f32", "f32", *starts, "f32")
    check(Case("dynamic_update_slice", [shape, sizes, *places], {}, types=types))
    assert OPERATORS["dynamic_slice"].passes == "forward"
    assert OPERATORS["dynamic_update_slice"].passes == "forward"


@given(shape=shapes(), count=st.integers(1, 3), data=st.data())
def test_reduce(shape, count, data):
    dims = data.draw(subsets(len(shape)))
    operands = [shape] * count + [()] * count
    regions = f"({region(count)})"
    check(Case("reduce", operands, {"dimensions": dims}, integers("dimensions", dims), regions))


@given(shape=shapes(least=1), count=st.integers(1, 3), data=st.data())
def test_sort(shape, count, data):
    dim = data.draw(st.integers(0, len(shape) - 1))
    names = ", ".join(f"%b{number}: tensor<f32>" for number in range(2 * count))
    compare = SELECT.replace("%x: tensor<f32>, %y: tensor<f32>", names)
    regions = f"({compare.replace('%x', '%b0').replace('%y', '%b1')})"
    text = f"dimension = {dim} : i64, is_stable = true"
    check(Case("sort", [shape] * count, {"dimension": dim}, text, regions))


@given(batch=shapes(most=2), n=SIZES, m=SIZES, left=st.booleans(), data=st.data())
def test_linear_algebra(batch, n, m, left, data):
    check(Case("cholesky", [(*batch, n, n)], {}))
    turn = data.draw(st.sampled_from(["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"]))
    text = f"left_side = {str(left).lower()}, lower = true, unit_diagonal = false"
    text += f", transpose_a = #stablehlo<transpose {turn}>"
    operands = [(*batch, n, n), (*batch, *((n, m) if left else (m, n)))]
    attributes = {"left_side": left, "transpose_a": turn}
    check(Case("triangular_solve", operands, attributes, text))


@given(shape=shapes(least=1), data=st.data())
def test_fft(shape, data):
    kind = data.draw(st.sampled_from(["FFT", "IFFT", "RFFT", "IRFFT"]))
    length = shape[len(shape) - data.draw(st.integers(1, min(3, len(shape)))) :]
    last = shape[-1] // 2 + 1
    given_ = (*shape[:-1], last) if kind == "IRFFT" else shape
    made = (*shape[:-1], last) if kind == "RFFT" else shape
    types = (
        "f32" if kind == "RFFT" else "complex<f32>",
        "f32" if kind == "IRFFT" else "complex<f32>",
    )
    text = f"fft_type = #stablehlo<fft_type {kind}>, {integers('fft_length', length)}"
    attributes = {"fft_type": kind, "fft_length": length, "result_shape": made}
    check(Case("fft", [given_], attributes, text, types=types))


@given(shape=shapes(least=1), data=st.data())
def test_batch_norm_inference(shape, data):
    dim = data.draw(st.integers(0, len(shape) - 1))
    text = f"epsilon = 0.1 : f32, feature_index = {dim} : i64"
    operands = [shape, *[(shape[dim],)] * 4]
    check(Case("batch_norm_inference", operands, {"feature_index": dim}, text))


@given(shape=shapes(least=1))
def test_rng_bit_generator(shape):
    text = "rng_algorithm = #stablehlo<rng_algorithm THREE_FRY>"
    types = ("ui64", "ui64", "ui32")
    check(Case("rng_bit_generator", [(2,)], {"result_shape": shape}, text, types=types))


GROUPS = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"
HANDLE = f"{GROUPS}, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"


@given(shape=shapes(least=1), count=st.integers(1, 2), data=st.data())
def test_collectives(shape, count, data):
    check(Case("all_reduce", [shape] * count, {}, HANDLE, f"({ADD})"))
    check(Case("collective_broadcast", [shape], {}, GROUPS))
    check(Case("cross-replica-sum", [shape], {}, GROUPS))
    pair = "source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>"
    check(Case("collective_permute", [shape], {}, pair))
    dim, other = (data.draw(st.integers(0, len(shape) - 1)) for _ in range(2))
    twice = (*shape[:dim], 2 * shape[dim], *shape[dim + 1 :])
    attributes = {"all_gather_dim": dim, "result_shape": twice}
    check(
        Case("all_gather", [shape] * count, attributes, f"all_gather_dim = {dim} : i64, {HANDLE}")
    )
    attributes = {"scatter_dimension": dim, "result_shape": shape}
    text = f"scatter_dimension = {dim} : i64, {HANDLE}"
    check(Case("reduce_scatter", [twice], attributes, text, f"({ADD})"))
    made = list(twice)
    made[dim] //= 2
    made[other] *= 2
    attributes = {"split_dimension": dim, "concat_dimension": other, "result_shape": tuple(made)}
    text = f"split_dimension = {dim} : i64, concat_dimension = {other} : i64"
    check(
        Case("all_to_all", [twice] * count, attributes, f"{text}, split_count = 2 : i64, {GROUPS}")
    )


@st.composite
def windows(draw, shape, base, dilation):
    """Windows along each dimension of a shape, and how many of them there are."""
    keys = ("size", "stride", "low", "high", base, dilation)
    rows, counts = [], []
    for size in shape:
        row = [draw(st.integers(1, n)) for n in (4, 4)] + [draw(st.integers(-1, 2)) for _ in "lh"]
        row += [draw(st.integers(1, 3)) if name else 1 for name in (base, dilation)]
        if draw(st.booleans()):
            row = [1, 1, 0, 0, 1, 1]
        padded = (size - 1) * row[4] + 1 + row[2] + row[3]
        reach = (row[0] - 1) * row[5] + 1
        assume((size - 1) * row[4] + 1 + min(row[2:4]) >= 0)
        assume(padded >= reach)
        rows.append(row)
        counts.append((padded - reach) // row[1] + 1)
    columns = dict(zip(keys, zip(*rows))) if rows else dict.fromkeys(keys, ())
    columns["padding"] = tuple(n for row in rows for n in row[2:4])
    return columns, tuple(counts)


def window_text(attributes, padding):
    return ", ".join([*(integers(*item) for item in attributes.items()), pairs("padding", padding)])


@given(shape=shapes(least=1, most=3), count=st.integers(1, 2), data=st.data())
def test_reduce_window(shape, count, data):
    found, _ = data.draw(windows(shape, "base", "dilation"))
    attributes = {
        "window_dimensions": found["size"],
        "window_strides": found["stride"],
        "base_dilations": found["base"],
        "window_dilations": found["dilation"],
    }
    text = window_text(attributes, found["padding"])
    attributes["padding"] = found["padding"]
    operands = [shape] * count + [()] * count
    check(Case("reduce_window", operands, attributes, text, f"({region(count)})"))


@given(shape=shapes(least=1, most=3), data=st.data())
def test_select_and_scatter(shape, data):
    found, counts = data.draw(windows(shape, "", ""))
    attributes = {"window_dimensions": found["size"], "window_strides": found["stride"]}
    text = window_text(attributes, found["padding"])
    attributes["padding"] = found["padding"]
    operands = [shape, counts, ()]
    check(Case("select_and_scatter", operands, attributes, text, f"({SELECT}, {ADD})"))


@st.composite
def convolutions(draw):
    spatial = draw(shapes(most=3))
    found, _ = draw(windows(spatial, "lhs_dilation", "rhs_dilation"))
    groups, batch_groups = draw(st.sampled_from([(1, 1), (1, 1), (2, 1), (3, 1), (1, 2), (1, 3)]))
    batch, channels, features = draw(SIZES), draw(SIZES), draw(SIZES)
    sides = {
        "input": (batch * batch_groups, channels * groups, *spatial),
        "kernel": (channels, features * groups * batch_groups, *found["size"]),
        "output": (0,) * (len(spatial) + 2),
    }
    words = {"input": ("batch", "feature"), "kernel": ("input_feature", "output_feature")}
    attributes, operands = {}, []
    for side, sizes in sides.items():
        places = draw(st.permutations(range(len(sizes))))
        for word, place in zip(words.get(side, words["input"]), places):
            attributes[f"{side}_{word}_dimension"] = place
        attributes[f"{side}_spatial_dimensions"] = tuple(places[2:])
        operands.append(tuple(sizes[places.index(dim)] for dim in range(len(sizes))))
    raw = ", ".join(
        f"{key} = {listed(value) if isinstance(value, tuple) else value}"
        for key, value in attributes.items()
    )
    window = {key: found[key] for key in ("lhs_dilation", "rhs_dilation")}
    window["window_strides"] = found["stride"]
    counted = {"feature_group_count": groups, "batch_group_count": batch_groups}
    text = (
        f"dimension_numbers = #stablehlo.conv<raw {raw}>, {window_text(window, found['padding'])}"
    )
    text += "".join(f", {key} = {count} : i64" for key, count in counted.items())
    if not spatial:
        text = text.replace(", padding = dense<[]> : tensor<0x2xi64>", "")
    attributes |= window | counted | {"padding": found["padding"]}
    if draw(st.booleans()):
        reversal = tuple(draw(st.booleans()) for _ in spatial)
        attributes["window_reversal"] = reversal
        words_ = ", ".join(str(yes).lower() for yes in reversal)
        text += f", window_reversal = array<i1{': ' * bool(reversal)}{words_}>"
    return Case("convolution", operands[:2], attributes, text)


@given(convolutions())
def test_convolution(case):
    check(case)


@st.composite
def lookups(draw):
    """The dimensions of a gather, or of a scatter: what slices have, and what indices have."""
    shape = draw(shapes(least=1, most=3))
    kinds = [draw(st.sampled_from(["seen", "hidden", "batching"])) for _ in shape]
    slices = tuple(
        draw(st.integers(1, size)) if kind == "seen" else 1 for size, kind in zip(shape, kinds)
    )
    batching = [dim for dim, kind in enumerate(kinds) if kind == "batching"]
    free = draw(shapes(most=2))
    order = draw(st.permutations([*batching, *(-1 - n for n in range(len(free)))]))
    batch = [shape[n] if n >= 0 else free[-1 - n] for n in order]
    others = [dim for dim in range(len(shape)) if dim not in batching]
    mapped = draw(st.permutations(others))[: draw(st.integers(1, len(others)))] if others else []
    hidden = tuple(dim for dim, kind in enumerate(kinds) if kind == "hidden")
    vector = draw(st.integers(0, len(batch)))
    implicit = len(mapped) == 1 and draw(st.booleans())
    indices = (*batch[:vector], len(mapped), *batch[vector:])
    places = [order.index(dim) + (order.index(dim) >= vector) for dim in batching]
    if implicit:
        vector, indices = len(batch), tuple(batch)
        places = [order.index(dim) for dim in batching]
    seen = [slices[dim] for dim, kind in enumerate(kinds) if kind == "seen"]
    window = sorted(draw(st.permutations(range(len(batch) + len(seen))))[: len(seen)])
    sizes, rest = iter(seen), iter(batch)
    made = [next(sizes) if n in window else next(rest) for n in range(len(batch) + len(seen))]
    found = {
        "window": window, "hidden": hidden, "batching": batching, "places": places,
        "mapped": mapped, "vector": vector,
    }  # fmt: skip
    return shape, indices, tuple(made), slices, found


def numbered(found, names):
    attributes = dict(zip(names, (tuple(found[key]) for key in list(found)[:-1])))
    text = ", ".join(f"{key} = {listed(value)}" for key, value in attributes.items())
    return attributes | {"index_vector_dim": found["vector"]}, (
        f"{text}, index_vector_dim = {found['vector']}"
    )


@given(lookups())
def test_gather(drawn):
    shape, indices, _, slices, found = drawn
    names = (
        "offset_dims", "collapsed_slice_dims", "operand_batching_dims",
        "start_indices_batching_dims", "start_index_map",
    )  # fmt: skip
    attributes, text = numbered(found, names)
    attributes["slice_sizes"] = slices
    text = f"dimension_numbers = #stablehlo.gather<{text}>, {integers('slice_sizes', slices)}"
    check(Case("gather", [shape, indices], attributes, text, types=("f32", "i32", "f32")))


def combine(name, element="f32", count=1):
    """A region that combines each array by one operation."""
    kind = f"tensor<{element}>"
    names = [f"%b{number}" for number in range(2 * count)]
    lines = [f" %s{n} = stablehlo.{name} %b{n}, %b{n + count} : {kind}\n" for n in range(count)]
    made = ", ".join(f"%s{n}" for n in range(count))
    arguments = ", ".join(f"{name}: {kind}" for name in names)
    kinds = ", ".join([kind] * count)
    return f"{{\n^bb0({arguments}):\n{''.join(lines)} stablehlo.return {made} : {kinds}\n}}"


REGIONS = {
    "add": {"monoid": "sum"},
    "multiply": {"monoid": "prod"},
    "maximum": {"monoid": "max"},
    "minimum": {"monoid": "min"},
    "and:i1": {"monoid": "and"},
    "or:i1": {"monoid": "or"},
    "and:i32": {"monoid": "and", "region": "bitwise"},
    "or:i32": {"monoid": "or", "region": "bitwise"},
    "xor:i1": {"monoid": "sum", "region": "custom"},
    "subtract": {"monoid": "sum", "region": "custom"},
    "replace": {"region": "replace"},
}
"""What regions are, and what `interop` says of them."""


@given(lookups(), st.sampled_from(sorted(REGIONS)), st.integers(1, 2))
def test_scatter(drawn, word, count):
    shape, indices, made, _, found = drawn
    names = (
        "update_window_dims", "inserted_window_dims", "input_batching_dims",
        "scatter_indices_batching_dims", "scatter_dims_to_operand_dims",
    )  # fmt: skip
    attributes, text = numbered(found, names)
    attributes |= REGIONS[word]
    text = f"scatter_dimension_numbers = #stablehlo.scatter<{text}>"
    name, _, element = word.partition(":")
    element = element or "f32"
    types = (*[element] * count, "i32", *[element] * (2 * count))
    body = region(count, count) if word == "replace" else combine(name, element, count)
    operands = [*[shape] * count, indices, *[made] * count]
    check(Case("scatter", operands, attributes, text, f"({body})", types))


def rule_of(name, *shapes, **attributes):
    return factor_rule(OPERATORS.find(name).sign(shapes, attributes))


def test_own_operators_have_the_rules_of_equivalent_operators():
    dims = {"lhs_contracting_dimensions": (2,), "rhs_contracting_dimensions": (1,)}
    dims |= {"lhs_batching_dimensions": (0,), "rhs_batching_dimensions": (0,)}
    ours = rule_of("matmul", (2, 8, 16), (2, 16, 4))
    theirs = rule_of("dot_general", (2, 8, 16), (2, 16, 4), **dims)
    assert ours[1:] == theirs[1:], "all but the names"
    assert str(rule_of("linear", (8, 16), (16, 4), (4,))) == (
        "([m, k], [k, n], [n]) -> ([m, n]) {m=8, n=4, k=16} reduced={k}"
    )
    assert rule_of("sharding_constraint", (8, 4)) == rule_of("tanh", (8, 4))


@pytest.mark.parametrize(
    ("line", "shapes", "sizes", "rule"),
    [
        # Windows that only one operand has, and digits that nothing is reduced along.
        ("3*y+u -> y  sum: u", [(12,)], {"y": 4, "u": 3}, "([yu]) -> ([y]) {y=4, u=3} reduced={u}"),
        ("3*y+u -> y u", [(12,)], {"y": 4, "u": 3}, "([yu]) -> ([y, u]) {y=4, u=3}"),
        ("y+u -> y u", [(4,)], {"y": 1, "u": 4}, "([uy]) -> ([y, u]) {y=1, u=4}"),
        # There is no room for u beside y, but two others have it.
        (
            "y+u, u, u -> y  sum: u",
            [(6,), (3,), (3,)],
            {"y": 4},
            "([y], [u], [u]) -> ([y]) {y=4, u=3} reduced={u} permuted={y}",
        ),
    ],
)
def test_rules_of_lines_that_shardy_does_not_have(line, shapes, sizes, rule):
    assert str(factor_rule(Signature.of(line, shapes, sizes))) == rule


def test_operators_without_operands_share_no_factor():
    """Shardy has no rule for these; ours shares no factor with anything."""
    for name in ("constant", "iota"):
        assert rule_of(name, result_shape=(8, 4)).operands == ()


OURS = (
    *("gelu", "relu", "silu", "einsum", "softmax", "log_softmax", "layer_norm", "rms_norm"),
    *("aggregate", "component"),
    *("sum_dim", "mean_dim", "prod_dim", "max_dim", "min_dim", "all_dim", "any_dim"),
    *("logsumexp_dim", "attention", "embedding", "cumsum", "topk", "avg_pool", "max_pool"),
    *("prod_of", "reduce_blocks", "attention_blocks", "polynomial"),
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "erf", "erfc", "is_inf", "sinh"),
    *("floor_divide", "mod", "square", "erf_inv", "next_after", "dropout", "random_bits"),
    *("copysign", "hypot", "logaddexp", "log2", "log10", "trunc"),
    *("random_uniform", "random_normal", "random_exponential", "random_gumbel", "random_integers"),
    *("random_split", "random_fold_in", "random_permutation", "threefry2x32", "lgamma"),
)
"""Those that Shardy does not know; `tests/runtime` proves them by trying."""


def test_every_operator_is_compared():
    """The library has no operator that this file, or the one of custom calls, does not name."""
    text = Path(__file__).read_text(encoding="utf-8")
    text += (Path(__file__).parent / "test_custom.py").read_text(encoding="utf-8")
    assert operators.__name__ == "weft.lang.operators"
    missing = [name for name in OPERATORS if name not in POINTWISE and f'"{name}"' not in text]
    assert not missing

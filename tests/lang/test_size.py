"""Sizes that are not known while tracing: their arithmetic, and graphs that are bound later."""

import json

import numpy as np
import pytest
import tests.runtime.test_eager  # noqa: F401 - it registers the cases
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.cases import CASES
from tests.runtime.programs import Maker
from tests.trials import trials

from weft import Graph, Plan, Tensor, WeftError, ops, propagate, run, search, trace
from weft.cli import main
from weft.lang import OPERATORS, Value
from weft.lang.fusion import fuse
from weft.lang.graph_json import from_json, to_json
from weft.lang.rewrite import Rewrite
from weft.lang.size import Size, bind, check_condition, common_divisor, recording
from weft.layout import DeviceMesh

N, M = Size.parse("n"), Size.parse("m")
PROGRAMS = trials(100)

expressions = st.recursive(
    st.sampled_from(["n", "m"]) | st.integers(-9, 9).map(lambda k: f"({k})"),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]}{t[1]}{t[2]})"),
        st.tuples(inner, st.sampled_from(["//", "%"]), st.sampled_from([-3, -1, 1, 2, 4, 6])).map(
            lambda t: f"({t[0]}{t[1]}({t[2]}))"
        ),
    ),
    max_leaves=6,
)
numbers = st.integers(0, 40)


@given(expressions, numbers, numbers)
def test_a_bound_size_equals_python_arithmetic(text, n, m):
    size, sizes = Size.parse(text), {"n": n, "m": m}
    assert bind(size, sizes) == eval(text, sizes)
    if len(str(size)) <= 200:
        assert bind(Size.parse(str(size)), sizes) == bind(size, sizes), "the text says the same"
    assert bind(bind(size, {"n": n}), {"m": m}) == bind(size, sizes)


@given(expressions, expressions, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]))
def test_decisions_hold_for_large_sizes_or_become_conditions(one, two, relation):
    left, right = Size.parse(one), Size.parse(two)
    conditions = {}
    try:
        with recording(conditions):
            decided = eval(f"a {relation} b", {"a": left, "b": right})
    except WeftError:
        return
    for n in (0, 1, 2, 3, 5, 17, 1000, 10**6):
        for m in (0, 1, 4, 1001):
            sizes = {"n": n, "m": m}
            try:
                for text in conditions:
                    check_condition(text, sizes)
            except WeftError:
                continue
            is_so = eval(f"a {relation} b", {"a": bind(left, sizes), "b": bind(right, sizes)})
            assert is_so == decided, (one, relation, two, sizes, conditions)


@given(expressions, expressions, numbers, numbers)
def test_a_quotient_of_sizes_is_exact_or_refused(one, two, n, m):
    left, right, sizes = Size.parse(one), Size.parse(two), {"n": n, "m": m}
    if not isinstance(left, Size) or not isinstance(right, Size) or not bind(right, sizes):
        return
    try:
        quotient = left // right
    except WeftError:
        return
    assert bind(quotient, sizes) * bind(right, sizes) == bind(left, sizes)


@given(expressions, expressions, numbers, numbers)
def test_a_common_divisor_divides_both(one, two, n, m):
    left, right, sizes = Size.parse(one), Size.parse(two), {"n": n, "m": m}
    divisor = bind(common_divisor(left, right), sizes)
    for side in (left, right):
        assert not divisor or bind(side, sizes) % divisor == 0


def test_sizes_are_written_as_they_are_read():
    assert str(2 * N + 1) == "2*n+1"
    assert str(N * M - 3 * M) == "m*n-3*m"
    assert str(3 * ((N + 1) // 2) - M // 2) == "3*((n+1)//2)-(m//2)"
    assert f"{N:+d} {N - 1:+d} {-N:+d}" == "+n +(n-1) +(-n)"
    assert {N: 1}[Size.parse("n")] == 1
    assert Size.parse("n**2") == N * N
    assert sorted((N + M).names) == ["m", "n"]


@pytest.mark.parametrize(
    "text",
    ["", "n.real", "n**9", "f(n)", "1.5", "True", "'n'", "n if n else m", "n\x00", "+" * 300],
)
def test_text_that_is_not_a_size_is_refused(text):
    with pytest.raises(WeftError, match="invalid size"):
        Size.parse(text)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda: range(N), "the size n has no number yet"),
        (lambda: float(N), "the size n has no number yet"),
        (lambda: np.zeros((N, 4)), "the size n has no number yet"),
        (lambda: M < N, "m < n is not known while m and n may be any number"),
        (lambda: 7 // N, "7 // n is not known while n may be any number"),
        (lambda: N % M, "n % m is not known while m and n may be any number"),
    ],
)
def test_operations_that_need_a_number_are_refused(use, message):
    with pytest.raises(WeftError) as refusal:
        use()
    assert str(refusal.value).splitlines()[0] == message


# -- operators ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_shape_rule_works_with_unknown_sizes_or_refuses_them(name):
    """With numbers for the names, the shapes are those of the same rule with numbers."""
    operator, worked = OPERATORS.find(name), 0
    for seed in range(trials(30)):
        operands, attributes = CASES[name](np.random.default_rng(seed))
        shapes = [tuple(np.shape(x)) for x in operands]
        wanted = operator.sign(shapes, attributes)
        for size in {n for shape in shapes for n in shape if n > 1}:
            unknown = [tuple(N if n == size else n for n in shape) for shape in shapes]
            with_names = {
                key: tuple(N if n == size else n for n in value) if key == "result_shape" else value
                for key, value in attributes.items()
            }
            try:
                line = operator.sign(unknown, with_names)
            except WeftError:
                continue
            graph = Graph([Value(f"x{n}", shape) for n, shape in enumerate(unknown)], [], [])
            assert graph.unknown_sizes == ("n",)
            assert str(line)
            if bind(line.result_shapes, {"n": size}) == wanted.result_shapes:
                worked += 1
            else:  # a window larger than what it slides over: `Graph.bind` refuses it
                assert name in ("convolution", "reduce_window"), (unknown, attributes)
    assert worked or name in ("constant", "iota", "rng") or name.startswith("random_")


def rows(rank):
    """A sharding that cuts the first dimension."""
    return "<@m, [" + ", ".join(['{"x"}', *["{}"] * (rank - 1)]) + "]>"


def graph_with_names(graph, size):
    """The same program with `n` for one size of its inputs."""

    def named(value):
        return tuple(map(named, value)) if type(value) is tuple else N if value == size else value

    inputs = [value._replace(shape=named(value.shape)) for value in graph.inputs]
    applications = [
        one._replace(
            attributes={
                key: named(value) if key in ("result_shape", "limit_indices") else value
                for key, value in one.attributes.items()
            }
        )
        for one in graph.applications
    ]
    dtypes = {name: value.dtype for name, value in graph.values.items()}
    return Graph(inputs, applications, graph.outputs, graph.meshes, graph.shardings, dtypes=dtypes)


def test_random_programs_with_names_for_sizes_become_themselves_when_bound():
    """Propagation with names gives what it gives with numbers, where both are possible."""
    bound = agreed = 0
    for seed in range(PROGRAMS):
        program = Maker(seed, 4)
        mesh = DeviceMesh("m", (2, 2), ("x", "y"))

        def body(*values, program=program):
            found = list(values)
            for step in program.steps:
                found.append(step.weft(*(found[n] for n in step.operands)))
            return [found[n] for n in program.outputs]

        shapes = [Value(f"x{n}", a.shape, str(a.dtype)) for n, a in enumerate(program.inputs)]
        first = shapes[0]
        cut = {"x0": rows(len(first.shape))}
        graph = trace(body, *shapes, meshes=[mesh], shardings=cut)
        for size in {n for value in graph.inputs for n in value.shape if n > 1}:
            try:
                unknown = graph_with_names(graph, size)
                again = unknown.bind(n=size)
            except WeftError:
                continue
            bound += 1
            assert again == graph, f"seed {seed}, size {size}\n{unknown}"
            assert from_json(to_json(unknown)) == unknown
            try:
                found = propagate(unknown)
            except WeftError:
                continue
            agreed += found.specs == propagate(graph).specs
            Plan.of(found, n=size).verify()
    assert bound > PROGRAMS
    assert agreed > bound // 2


# -- traced functions -----------------------------------------------------------------------------

FUNCTIONS = [
    (lambda x, w: ops.relu(x @ w), ("n", 4), (4, 6)),
    (lambda x, w: (x @ w).sum(0), ("n", 4), (4, 6)),
    (lambda x: x.reshape(-1), ("n", 4)),
    (lambda x: x.reshape(-1, 2, 4).mean(1), ("n", 8)),
    (lambda x: x.reshape(x.shape[0], 2, 2).transpose(1, 0, 2), ("n", 4)),
    (lambda x: x.reshape(2 * x.shape[0], 2), ("n", 4)),
    (lambda x: x[1:] - x[:-1], ("n", 4)),
    (lambda x: x[::2], ("n", 4)),
    (lambda x: x[-1], ("n", 4)),
    (lambda x: x[:3] * 2, ("n", 4)),
    (lambda x: ops.concatenate([x, x * 2], axis=0), ("n", 4)),
    (lambda x: ops.softmax(x, axis=-1), ("n", "m")),
    (lambda x: ops.layer_norm(x, eps=1e-3), ("n", 8)),
    (lambda x, y: x + y, ("n", 1), (1, "n")),
    (lambda x: ops.cumsum(x, axis=0), ("n", 4)),
    (lambda x: x.T @ x, ("n", 4)),
    (lambda q, k: ops.softmax(q @ k.transpose(0, 2, 1), axis=-1), ("b", "s", 8), ("b", "s", 8)),
]


@pytest.mark.parametrize("case", range(len(FUNCTIONS)))
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_tracing_with_names_and_binding_is_tracing_with_numbers(case, size):
    function, *shapes = FUNCTIONS[case]
    graph = trace(function, *shapes)
    sizes = {name: size + n for n, name in enumerate(graph.unknown_sizes)}
    numbers = [bind(value.shape, sizes) for value in graph.inputs]
    expected = trace(function, *numbers)
    try:
        bound = graph.bind(sizes)
    except WeftError:
        assert size == 1 or (case == 9 and size < 3), "only what is decided by the size is refused"
        return
    assert bound.unknown_sizes == ()
    assert [bound.values[name].shape for name in bound.outputs] == [
        expected.values[name].shape for name in expected.outputs
    ]
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype("float32") for shape in numbers]
    mesh = DeviceMesh("m", (2,), ("x",))
    plans = []
    for each in (graph, expected):
        annotated = Graph(
            each.inputs,
            each.applications,
            each.outputs,
            [mesh],
            {each.inputs[0].name: rows(len(shapes[0]))},
            conditions=each.conditions,
        )
        plans.append(Plan.of(propagate(annotated), **(sizes if each is graph else {})))
    names = [value.name for value in graph.inputs]
    (one,), (two,) = (run(plan, dict(zip(names, arrays))) for plan in plans)
    assert np.allclose(one.numpy(), two.numpy(), equal_nan=True)
    plans[0].verify()


def test_inputs_by_name():
    graph = trace(lambda x, w: x @ w, w=(4, 2), x=("n", 4))
    assert [str(value) for value in graph.inputs] == ["w: float32[4, 2]", "x: float32[n, 4]"]
    with pytest.raises(WeftError, match="the function has no parameter mesh") as caught:
        trace(lambda x: x, (4,), mesh='@m = <["x"=2]>')
    assert caught.value.__notes__ == ["hint: its parameters are x"]


def test_decisions_about_sizes_are_conditions():
    def scaled(x):
        return x * 2 if x.shape[0] > 16 else x * 3

    graph = trace(scaled, ("n", 4))
    assert graph.conditions == ("n > 16",)
    assert str(graph).endswith("\nwhere n > 16")
    assert graph.bind(n=17) == trace(scaled, (17, 4))
    with pytest.raises(WeftError) as caught:
        graph.bind(n=16)
    assert str(caught.value) == "n=16 does not meet the condition n > 16 of the trace"
    assert caught.value.__notes__ == [
        "hint: the function decided something by it: trace again with n=16"
    ]
    assert from_json(to_json(graph)) == graph
    relu = trace(lambda x: ops.relu(scaled(x)), ("n", 4))
    assert fuse(relu, "multiply").conditions == ("n > 16",)
    two = trace(lambda x: x if x.shape[0] + x.shape[1] > 9 else -x, ("n", "m"))
    assert two.bind(m=4).conditions == ("n > 5",)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda g: Plan.of(propagate(g)), "a plan needs a number for n"),
        (lambda g: propagate(g, "cost"), "the strategy 'cost' needs a number for n"),
        (lambda g: search(g, DeviceMesh("m", (2,), ("x",))), "a search needs a number for n"),
        (lambda g: g.bind(k=3), "no size of the graph is named k"),
        (lambda g: g.bind(n=-1), "n is -1; it cannot be negative"),
        (lambda g: g.bind(n=2.5), "n must be an integer: 2.5"),
        (
            lambda _: trace(lambda x, y: x + y, ("n", 4), ("m", 4)),
            "dimension 0 of operand 1 has size m, and 'i0' has size n elsewhere",
        ),
        (
            lambda _: trace(lambda x, w: x @ w, ("n", 4), ("n", 4)),
            "dimension 0 of operand 1 has size n, and 'k' has size 4 elsewhere",
        ),
        (lambda _: trace(lambda x: x.reshape(3, -1), ("n", 4)), "[n, 4] cannot be reshaped to"),
        (lambda _: trace(lambda x: x, ("n!", 4)), "invalid size 'n!'"),
        (lambda _: trace(lambda x: x.reshape(len(x), 4), ("n", 4)), "the size n has no number yet"),
    ],
)
def test_messages(use, message):
    graph = trace(lambda x: x + 1, ("n", 4), meshes=['@m = <["x"=2]>'])
    with pytest.raises(WeftError) as refusal:
        use(graph)
    assert str(refusal.value).splitlines()[0].startswith(message)


def test_binding_repeats_every_rule():
    graph = trace(lambda x, y: x + y, ("n", 4), ("n", 4))
    assert graph.bind(n=1).values["add"].shape == (1, 4)
    windows = trace(lambda x: ops.max_pool(x, window=(3,), strides=(1,)), ("n",))
    assert str(windows.values["max_pool"]) == "max_pool: float32[n-2]"
    assert windows.bind(n=9).values["max_pool"].shape == (7,)
    with pytest.raises(WeftError) as caught:
        windows.bind(n=1)
    assert str(caught.value) == "with n=1, max_pool has the shape [0], and [n-2] was traced"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": [{"name": "x", "shape": ["n.x"]}]}, "inputs[0].shape[0]: invalid size 'n.x'"),
        ({"conditions": ["n"]}, "conditions[0]: invalid condition 'n'"),
        ({"conditions": ["n > 3"]}, None),
        ({"conditions": ["1 > 2"]}, "conditions[0]: a size does not meet the condition 1 > 2"),
        (
            {
                "applications": [
                    {
                        "operator": "reshape",
                        "operands": ["x"],
                        "results": [{"name": "y"}],
                        "attributes": {"result_shape": [{"size": "n*"}]},
                    }
                ]
            },
            "applications[0].attributes.result_shape[0].size: invalid size 'n*'",
        ),
    ],
)
def test_files_are_checked(change, message):
    text = json.loads(to_json(trace(lambda x: x + 1, ("n",)))) | {"outputs": ["x"]}
    text |= {"applications": []} | change
    if message is None:
        assert from_json(json.dumps(text)).conditions == tuple(change["conditions"])
        return
    with pytest.raises(WeftError) as refusal:
        from_json(json.dumps(text))
    assert str(refusal.value).splitlines()[0].startswith(message)


def test_a_rewrite_records_its_decisions_as_conditions():
    wide = Rewrite(
        "double",
        ("tanh", "x"),
        lambda v, _: ops.tanh(v["x"]) * (1 if v["x"].shape[0] > 8 else 2),
    )
    graph = wide.apply(trace(lambda x: ops.tanh(x * 1), ("n", 4)), "tanh")
    assert graph.conditions == ("n > 8",)
    assert graph.bind(n=9).unknown_sizes == ()


def test_sizes_on_the_command_line(tmp_path, capsys):
    path = tmp_path / "graph.json"
    path.write_text(
        to_json(
            trace(
                lambda x: x + x[:1],
                ("n", 4),
                meshes=['@m = <["x"=2]>'],
                shardings={"x": '<@m, [{"x"}, {}]>'},
            )
        )
    )
    assert main(["propagate", str(path)]) == 0
    assert "add: float32[n, 4]" in capsys.readouterr().out
    assert main(["plan", str(path), "--size", "n=32"]) == 0
    assert main(["search", str(path), "--size", "n=32"]) == 0
    capsys.readouterr()
    for options, message in [
        ([], "a plan needs a number for n"),
        (["--size", "n"], "--size n: expected NAME=NUMBER"),
        (["--size", "m=3"], "--size: no size of the graph is named m"),
        (["--size", "n=0"], "--size: n=0 does not meet the condition n >= 1 of the trace"),
    ]:
        assert main(["plan", str(path), *options]) != 0
        assert message in capsys.readouterr().err


def test_a_size_is_a_number_of_the_program():
    x = np.arange(12, dtype="float32").reshape(6, 2)
    for function in (
        lambda x: x / x.shape[0],
        lambda x: 1 + x.shape[0] - x,
        lambda x: ops.var(x, 0, correction=1),
    ):
        plan = Plan.of(propagate(trace(function, ("n", 2), names=["x"])), n=6)
        (found,) = run(plan, {"x": x})
        assert np.allclose(found.numpy(), function(Tensor(x)).numpy())


@pytest.mark.parametrize("text", ["n%4", "(-n)%4", "3*n-2*((3*n)//2)", "n-2*(n//2)-5"])
def test_a_remainder_is_compared_by_its_limits(text):
    size = Size.parse(text)
    low, high = (
        min(size.bind({"n": n}) for n in range(12)),
        max(size.bind({"n": n}) for n in range(12)),
    )
    with recording(found := {}):
        assert size >= low
        assert size <= high
        assert not size > high
        assert not size < low
    assert not found

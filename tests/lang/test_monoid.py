"""Monoids that a user defines: their laws, and plans over them, proved, counted and executed."""

import json
import pickle
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import cloudpickle
import numpy as np
import pytest
from tests.runtime import cases_reduce  # noqa: F401 - defines the monoids of the tests
from tests.runtime.monoids import PARITY, SPREAD, TWO_LARGEST, two_largest

from weft import (
    Operator,
    Plan,
    ShardingSpec,
    Tensor,
    WeftError,
    communication,
    ops,
    propagate,
    run,
    trace,
)
from weft.lang.arithmetic import apply_all
from weft.lang.definition import define
from weft.lang.dtype import components, itemsize
from weft.lang.graph_json import from_json, to_json
from weft.lang.monoid import Monoid, check_laws, monoid_named
from weft.lang.notation import Notation, numbered
from weft.program.verify import VerificationError
from weft.runtime.validate import validate
from weft.values import MONOIDS


@pytest.mark.parametrize(
    "name", ["argmax", "argmin", "moments", "largest_1", "largest_3", "largest_40"]
)
def test_the_laws_of_those_that_weft_defines(name):
    check_laws(monoid_named(name))


@pytest.mark.parametrize(
    ("combine", "identity", "message"),
    [
        (lambda xp, a, b: a - b, 0, "the monoid wrong has another identity: "),
        (lambda xp, a, b: (a + b) / 2, 0, "the monoid wrong has another identity: "),
        (lambda xp, a, b: xp.where(a == 0, b, a), 0, "the monoid wrong is not commutative: "),
        (lambda xp, a, b: a + b + a * b * (a - b) ** 2, 0, "the monoid wrong is not associative: "),
        (lambda xp, a, b: xp.astype(a + b, xp.float32), 0, "wrong makes float32, and its elements"),
        (lambda xp, a, b: a.nothing, 0, "the monoid wrong could not be tried: AttributeError"),
    ],
)
def test_a_monoid_that_breaks_a_law_is_refused(combine, identity, message):
    with pytest.raises(WeftError) as caught:
        Monoid("wrong", combine, identity=identity)
    assert str(caught.value).startswith(message)
    assert "wrong" not in MONOIDS


def test_names_are_given_once():
    with pytest.raises(WeftError, match="there already is a monoid spread"):
        Monoid("spread", lambda xp, a, b: a + b)
    again = Monoid("parity", lambda xp, a, b: xp.bitwise_xor(a, b))
    assert again.fingerprint == PARITY.fingerprint
    assert MONOIDS["parity"] is PARITY
    with pytest.raises(WeftError, match="there already is a monoid sum"):
        Monoid("sum", lambda xp, a, b: a + b)
    with pytest.raises(WeftError, match="must be an identifier: 'a b'"):
        Monoid("a b", lambda xp, a, b: a + b)


def test_a_struct_has_the_bytes_of_its_components():
    dtype = TWO_LARGEST.dtype("float32")
    assert dtype == "struct<value: float32[2], place: int64[2]>"
    assert (itemsize(dtype), len(components(dtype))) == (24, 2)
    for wrong in ("struct<>", "struct<a: float33>", "struct<a: int8", "struct<a: int8[-1]>"):
        assert components(wrong) == ()


def spread(x):
    found = ops.aggregate(x, SPREAD, 1)
    return ops.component(found, "high") - ops.component(found, "low")


def both(x):
    found = ops.aggregate(x, TWO_LARGEST, 1)
    return spread(x), ops.component(found, "value"), ops.component(found, "place")


SHARDINGS = ['[{}, {"x", "y"}]', '[{"x"}, {"y"}]', '[{"y"}, {}]', '[{}, {"y", "x"}]']


def plan_of(function, sharding, shape=(6, 13), dtype="float32"):
    graph = trace(
        function,
        np.empty(shape, dtype),
        names=["a"],
        meshes=['@m = <["x"=2, "y"=3]>'],
        shardings={"a": f"<@m, {sharding}>"},
    )
    return Plan.of(propagate(graph))


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_plans_agree_with_numpy_and_with_their_prediction(sharding):
    a = np.random.default_rng(1).normal(size=(6, 13)).astype("float32")
    plan = plan_of(both, sharding)
    plan.verify()
    with communication() as moved:
        found = run(plan, {"a": a})
    for output, wanted in zip(found, (np.ptp(a, axis=1), *two_largest(a, 1))):
        np.testing.assert_array_equal(output.numpy(), wanted)
    assert moved.received == sum(plan.received)
    on_threads = run(plan, {"a": a}, on="threads", memory=4000)
    for one, two in zip(found, on_threads):
        np.testing.assert_array_equal(one.numpy(), two.numpy())


def test_all_components_are_counted_and_combined_in_one_transfer():
    plan = plan_of(spread, '[{}, {"x", "y"}]', shape=(12, 12))
    moves = [line for line in str(plan.program).splitlines() if "spread(0/2, 1/3)" in line]
    assert len(moves) == 1
    # reduce-scatter and all-gather: 5 of 6 parts of 12 elements of 8 bytes, twice
    assert set(plan.received) == {2 * 5 * 2 * 8}


def test_the_verifier_compares_definitions_of_monoids():
    """The same name is not enough: another definition under it computes something else."""
    plan = plan_of(spread, '[{}, {"x", "y"}]')
    other = object.__new__(Monoid)
    object.__setattr__(other, "name", "spread")
    forged = replace(plan.program, monoids={"spread": other})
    with pytest.raises(VerificationError, match="parts by spread are combined by another defin"):
        forged.verify(define(plan.graph))
    with pytest.raises(VerificationError, match="parts by spread are combined by another defin"):
        replace(plan.program, monoids={}).verify()


@pytest.mark.parametrize(
    ("monoid", "dtype", "hint"),
    [
        ("spread", "float32", "the elements of spread are struct<low: float32, high: float32>"),
        ("logsumexp", "int32", "logsumexp combines arrays of float complex"),
        ("or", "float64", "or combines arrays of bool int uint"),
        ("parity", "float64", "the elements of parity are float64, which it does not combine"),
    ],
)
def test_an_array_does_not_lie_in_parts_that_its_monoid_cannot_combine(monoid, dtype, hint):
    plan = plan_of(ops.transpose, f'[{{"x"}}, {{}}], unreduced={monoid}{{"y"}}', dtype=dtype)
    message = f"an array of {dtype} cannot lie in parts by {monoid}"
    with pytest.raises(WeftError, match=message) as caught:
        str(plan.program)
    assert caught.value.__notes__ == [f"hint: {hint}"]


def test_a_tensor_does_not_lie_in_parts_that_its_monoid_cannot_combine():
    spec = ShardingSpec.parse('<@m, [{}], unreduced=spread{"y"}>', '@m = <["x"=2, "y"=3]>')
    message = "an array of float32 cannot lie in parts by spread"
    with pytest.raises(WeftError, match=message):
        Tensor.of_shards([np.ones(4, "float32")] * 6, spec, (4,))
    copies = Tensor.ones((4,)).shard(spec.mesh, "<@m, [{}]>")
    with pytest.raises(WeftError, match=message):
        copies.with_sharding(spec)


def test_the_proof_refuses_parts_that_their_monoid_cannot_combine():
    program = plan_of(ops.transpose, '[{"x"}, {}], unreduced={"y"}').program
    for monoid, message in (
        ("spread", "a: float32 cannot lie in parts by spread"),
        ("parity", "parts by parity, which is not defined"),
    ):
        first, *rest = program.buffers
        parts = tuple((digit, monoid) for digit, _ in first.layout.parts)
        forged = replace(first, layout=first.layout.with_parts(parts))
        monoids = {"spread": SPREAD}
        changed = replace(program, buffers=(forged, *rest), monoids=monoids)
        with pytest.raises(VerificationError, match=message):
            changed.verify()


def test_definitions_go_to_other_processes():
    assert pickle.loads(pickle.dumps(monoid_named("argmax"))) is monoid_named("argmax")
    sent, known = cloudpickle.dumps(SPREAD), SPREAD.fingerprint
    assert pickle.loads(sent) is SPREAD
    try:
        del MONOIDS["spread"]
        there = pickle.loads(sent)
        assert there is MONOIDS["spread"]
        assert there.fingerprint == known != PARITY.fingerprint
        MONOIDS["spread"] = PARITY
        with pytest.raises(WeftError, match="the monoid spread is defined differently in two proc"):
            pickle.loads(sent)
    finally:
        MONOIDS["spread"] = SPREAD


def test_graphs_survive_json():
    graph = plan_of(both, SHARDINGS[1]).graph
    assert from_json(to_json(graph)) == graph


@contextmanager
def redefined(name, *definition, **fields):
    """Another monoid of the same name, as in another program."""
    known = MONOIDS.pop(name)
    try:
        yield Monoid(name, *definition, **fields)
    finally:
        MONOIDS[name] = known


def least(xp, a, b):
    return xp.minimum(a, b)


def total(xp, a, b):
    return a + b


def by_helper(xp, a, b):
    return helper(xp, a, b)


def recursive(xp, a, b):
    return recursive(xp, a, b) if LOCK.locked() else json.dumps([a, b])


helper = total
LOCK = threading.Lock()


@pytest.mark.parametrize("what", ["graph", "plan", "input"])
def test_a_file_is_refused_where_a_monoid_of_that_name_is_another(what):
    text = '<@m, [{"x"}, {}], unreduced=parity{"y"}>'
    graph = trace(
        lambda x: ops.transpose(x) if what == "input" else ops.aggregate(x, PARITY, 1),
        np.empty((6, 4), "int64"),
        names=["a"],
        meshes=['@m = <["x"=2, "y"=3]>'],
        shardings={"a": text if what == "input" else '<@m, [{}, {"x"}]>'},
    )
    plan = Plan.of(propagate(graph))
    written = plan.to_json() if what == "plan" else to_json(graph)
    read = Plan.from_json if what == "plan" else from_json
    assert read(written) in (plan, graph)
    path = "graph.monoids.parity" if what == "plan" else "monoids.parity"
    with redefined("parity", total), pytest.raises(WeftError) as caught:
        read(written)
    assert str(caught.value).startswith(
        f"{path}: the monoid parity is defined differently here than where the file was written"
    )
    with pytest.raises(WeftError, match="was defined in cpython-30, and definitions are not comp"):
        read(written.replace(sys.implementation.cache_tag, "cpython-30"))


def test_a_plan_is_refused_where_the_monoid_of_its_parts_is_another():
    plan = plan_of(ops.transpose, '[{"x"}, {}], unreduced=parity{"y"}', dtype="int64")
    data = json.loads(plan.to_json())
    assert Plan.from_json(json.dumps(data)) == plan
    data["monoids"]["parity"] = data["monoids"]["parity"].replace(PARITY.fingerprint, "0" * 16)
    with pytest.raises(WeftError, match=r"^monoids\.parity: the monoid parity is defined differ"):
        Plan.from_json(json.dumps(data))


def test_a_fingerprint_covers_all_that_a_definition_computes_with(monkeypatch):
    def fingerprint(combine):
        monkeypatch.delitem(MONOIDS, "tried", raising=False)
        return Monoid("tried", combine, check=False).fingerprint

    def either(function):
        return lambda xp, a, b: function(xp, b, a)

    class Callable:
        def __init__(self, factor):
            self.factor = factor

        def __call__(self, xp, a, b):
            return a * self.factor + b

        def method(self, xp, a, b):
            return a * self.factor + b

    table = np.arange(5000)
    other = table.copy()
    other[2500] = 7
    every = [
        total,
        least,
        either(total),
        either(least),
        partial(lambda k, xp, a, b: a + k * b, 1),
        partial(lambda k, xp, a, b: a + k * b, 2),
        Callable(1),
        Callable(2),
        Callable(1).method,
        Callable(2).method,
        lambda xp, a, b, k=1: a + k * b,
        lambda xp, a, b, k=2: a + k * b,
        lambda xp, a, b, table=table: table[a],
        lambda xp, a, b, table=other: table[a],
        by_helper,
    ]
    found = [fingerprint(combine) for combine in every]
    monkeypatch.setitem(globals(), "helper", least)
    found.append(fingerprint(by_helper))
    assert len(set(found)) == len(found)
    assert fingerprint(Callable(2)) == found[7]
    assert fingerprint(either(recursive)) == fingerprint(either(recursive))


def test_a_sharding_may_be_partial_by_it():
    text = '<@m, [{"x"}], unreduced=spread{"y"}>'
    assert str(ShardingSpec.parse(text, '@m = <["x"=2, "y"=3]>')) == text


@pytest.mark.parametrize("lies", ['[{"x"}]', '[{"y"}]', "[{}]"])
def test_elements_lie_where_they_are_wanted(lies):
    def scattered(x):
        found = ops.aggregate(x, SPREAD, 1).with_sharding(f"<@m, {lies}>")
        return ops.component(found, "high") - ops.component(found, "low")

    a = np.random.default_rng(1).normal(size=(6, 13)).astype("float32")
    plan = plan_of(scattered, SHARDINGS[0])
    plan.verify()
    with communication() as moved:
        (found,) = run(plan, {"a": a})
    np.testing.assert_array_equal(found.numpy(), np.ptp(a, axis=1))
    assert moved.received == sum(plan.received)
    mesh = plan.mesh
    tensor = Tensor(a).shard(mesh, '<@m, [{}, {"x", "y"}]>')
    elements = ops.aggregate(tensor, SPREAD, 1).with_sharding(mesh, f"<@m, {lies}>")
    np.testing.assert_array_equal(ops.component(elements, "low").numpy(), a.min(1))


def test_a_line_may_reduce_by_it():
    def range_of(block, x):
        return SPREAD.aggregate(block.xp, x, block.xp.arange(x.shape[-1]))

    own = Operator(
        "range_of", "m k -> m  spread: k", range_of, dtypes=lambda d, _: [SPREAD.dtype(d[0])]
    )
    assert validate(own, [np.random.default_rng(0).normal(size=(5, 9))]).boxes > 8


def test_numbers_are_taken_from_components():
    with pytest.raises(WeftError, match="has components, which are not numbers together") as caught:
        plan_of(lambda x: ops.aggregate(x, SPREAD, 1) + 1, SHARDINGS[0])
    assert 'ops.component(x, "low")' in caught.value.__notes__[0]
    with pytest.raises(WeftError, match="has no component middle"):
        plan_of(lambda x: ops.component(ops.aggregate(x, SPREAD, 1), "middle"), SHARDINGS[0])
    with pytest.raises(WeftError, match="float32 has no component low"):
        plan_of(lambda x: ops.component(x, "low"), SHARDINGS[0])
    with pytest.raises(WeftError, match="sum is one of Weft's own reductions"):
        plan_of(lambda x: ops.aggregate(x, "sum", 1), SHARDINGS[0])
    with pytest.raises(WeftError, match="'total' is not a monoid"):
        plan_of(lambda x: ops.aggregate(x, "total", 1), SHARDINGS[0])


def test_one_dimension_is_reduced_by_one_monoid():
    """Two results of which one is a sum and one a maximum cannot be combined by either."""
    with pytest.raises(WeftError, match="'k' is reduced by sum and by max") as caught:
        Notation.parse("m k -> m, m  sum: k  max: k")
    assert "define a monoid" in caught.value.__notes__[-1]
    with pytest.raises(WeftError, match="'k' is reduced by sum and by max"):
        Notation([numbered("k", 1)], [()], [("k", "sum"), ("k", "max")])


def sum_and_largest(block, x):
    xp = block.xp
    return xp.sum(x, axis=1), xp.max(x, axis=1)


def test_results_that_the_monoid_does_not_combine_are_found():
    wrong = Operator("both", "m k -> m, m  sum: k", sum_and_largest)
    with pytest.raises(WeftError, match="both is wrong where 'k' is cut into"):
        validate(wrong, [np.random.default_rng(0).normal(size=(5, 9))])


def test_a_result_may_lack_a_dimension_that_is_cut():
    """Cells that differ in it make copies, also where a reduction is cut at once."""
    pair = Operator(
        "pair", "m k, k n -> m n, m  sum: k", lambda block, x, w: (x @ w, block.xp.sum(x, axis=1))
    )
    rng = np.random.default_rng(0)
    for seed in range(5):
        validate(pair, [rng.normal(size=(5, 6)), rng.normal(size=(6, 7))], seed=seed)
    uneven = Operator(
        "uneven", "m n -> m n, m", lambda block, x: (x, block.xp.sum(x, axis=1)), dtypes=None
    )
    uneven = replace(uneven, dtypes=lambda d, _: [d[0]])
    with pytest.raises(WeftError, match="uneven makes result 1 differently in two boxes where 'n'"):
        validate(uneven, [rng.normal(size=(5, 6))])


def along_x(function, array):
    """The outputs of a function of one array whose second dimension is cut."""
    rest = ", {}" * (array.ndim - 2)
    graph = trace(
        function,
        array,
        names=["v"],
        meshes=['@m = <["x"=3]>'],
        shardings={"v": f'<@m, [{{}}, {{"x"}}{rest}]>'},
    )
    return [output.numpy() for output in run(propagate(graph), {"v": array})]


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_the_places_of_numpy(axis):
    x = np.random.default_rng(3).integers(0, 4, (5, 4, 3)).astype("float32")
    x[1, 2, 0] = np.nan
    largest, smallest = along_x(lambda v: (ops.argmax(v, axis), ops.argmin(v, axis)), x)
    np.testing.assert_array_equal(largest, np.argmax(x, axis))
    np.testing.assert_array_equal(smallest, np.argmin(x, axis))


def test_the_variance_of_numpy():
    x = np.random.default_rng(3).normal(size=(5, 7)) + 1e6
    one, two = along_x(lambda v: (ops.var(v, 1), ops.std(v, 0, correction=1)), x)
    np.testing.assert_allclose(one, x.var(1), rtol=1e-7)
    np.testing.assert_allclose(two, x.std(0, ddof=1), rtol=1e-7)


def test_the_largest_elements_are_those_of_one_sort():
    x = np.random.default_rng(4).integers(0, 5, (3, 17)).astype("float32")
    x[1, 3] = np.nan
    for count in (1, 5, 17):
        values, indices = along_x(lambda v, count=count: ops.topk(v, count), x)
        wanted = run(trace_topk(x, count), {"v": x})
        np.testing.assert_array_equal(values, wanted[0].numpy())
        np.testing.assert_array_equal(indices, wanted[1].numpy())


def trace_topk(x, count):
    """The operator that sees a row whole."""
    return propagate(trace(lambda v: apply_all("topk", v, k=count), x, names=["v"]))


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_the_quantiles_of_numpy(axis):
    x = np.random.default_rng(5).normal(size=(9, 14)).astype("float32")
    x[2, 3] = np.nan
    some, middle = along_x(lambda v: (ops.quantile(v, [0, 0.3, 1], axis), ops.median(v, axis)), x)
    np.testing.assert_allclose(some, np.quantile(x, [0, 0.3, 1], axis), rtol=1e-5)
    np.testing.assert_allclose(middle, np.median(x, axis), rtol=1e-5)
    with pytest.raises(WeftError, match="quantiles from 0 to 1"):
        along_x(lambda v: ops.quantile(v, 1.5, axis), x)


@pytest.mark.slow
def test_definitions_reach_the_workers_of_a_cluster():
    a = np.random.default_rng(1).normal(size=(6, 13)).astype("float32")
    plan = plan_of(both, SHARDINGS[1])
    found = run(plan, {"a": a}, on="dask")
    for output, wanted in zip(found, (np.ptp(a, axis=1), *two_largest(a, 1))):
        np.testing.assert_array_equal(output.numpy(), wanted)


def test_a_structured_array_of_numpy_is_an_input():
    x = np.asarray([[1.0, 3.0, 2.0], [5.0, 4.0, 6.0]], "float32")
    pairs = ops.aggregate(Tensor(x), "argmax", 1).numpy()
    assert pairs.dtype.names == ("value", "index")
    graph = trace(
        lambda pairs: ops.component(pairs, "value"),
        pairs,
        meshes=['@m = <["x"=2]>'],
        shardings={"pairs": '<@m, [{"x"}]>'},
    )
    assert graph.inputs[0].dtype == "struct<value: float32, index: int64>"
    for given in (pairs, Tensor(pairs)):
        assert run(Plan.of(propagate(graph)), {"pairs": given})[0].numpy().tolist() == [3.0, 6.0]

"""Random programs with a user's own monoids, random numbers and a user's own rewrites, together.

Every program has all three. Its plan comes from propagation, is random, or is found by a search
that is given the rewrites; what it computes is known from NumPy.
"""

import numpy as np
from tests.program.random_plans import Planner
from tests.runtime.monoids import FIRST_LARGEST, LOG_SUM_EXP, WELFORD
from tests.runtime.programs import Maker, Step, run_steps
from tests.runtime.tensors import random_mesh, random_spec
from tests.runtime.test_eager import agree

from weft import Machine, Plan, ops, propagate, search, trace
from weft.lang.alternatives import Alternatives
from weft.lang.rewrite import Rewrite

MACHINE = Machine(latency=1e-6, bandwidth=1e9, flops={"float32": 1e9}, memory_bandwidth=1e10)
SEARCHED = 10
"""One plan in so many is searched."""


def by_axis(x, axis, keepdims=False):
    """An array with the axes of a reduction joined and last, and the shape of what it makes."""
    axes = sorted(range(x.ndim) if axis is None else [n % x.ndim for n in axis])
    kept = [n for n in range(x.ndim) if n not in axes]
    shape = [1 if n in axes else size for n, size in enumerate(x.shape) if keepdims or n in kept]
    return x.transpose(*kept, *axes).reshape(*(x.shape[n] for n in kept), -1), shape


class UserProgram(Maker):
    """A program that has an aggregation by a user's monoid, and random numbers."""

    dtypes = ("float64", "float64", "float32")
    NEEDS = (("moments", "first_largest", "log_sum_exp", "aggregate"), ("dropout", "uniform"))

    def __init__(self, seed):
        super().__init__(seed, seed % 4)
        for kinds in (*self.NEEDS, ("dropout", "relu", "matmul"), self.NEEDS[seed % 2]):
            while not self.add(kinds):
                pass

    def axes(self, x):
        """One axis, or several, or all."""
        chance = self.rng.random()
        if chance < 0.15:
            return None
        count = 1 if chance < 0.7 else int(self.rng.integers(1, x.ndim + 1))
        return tuple(int(n) for n in self.rng.permutation(x.ndim)[:count])

    def aggregation(self, monoid, of_weft, of_numpy):
        a = self.any()
        value = self.values[a]
        axis, keep = self.axes(value), bool(self.rng.random() < 0.3)
        if not value.size or value.dtype.kind != "f":
            return None

        def in_weft(x):
            return of_weft(ops.aggregate(x, monoid, axis, keepdims=keep))

        def in_numpy(x):
            flat, shape = by_axis(x, axis, keep)
            return of_numpy(flat).reshape(shape)

        return Step(monoid.name, [a], in_weft, in_numpy)

    def moments(self):
        name = str(self.rng.choice(["count", "mean", "squares"]))
        oracles = {
            "count": lambda x: np.full(x.shape[:-1], x.shape[-1]),
            "mean": lambda x: x.mean(-1),
            "squares": lambda x: ((x - x.mean(-1, keepdims=True)) ** 2).sum(-1),
        }
        return self.aggregation(WELFORD, lambda s: ops.component(s, name), oracles[name])

    def first_largest(self):
        name = str(self.rng.choice(["value", "place"]))
        oracle = {"value": lambda x: x.max(-1), "place": lambda x: x.argmax(-1)}[name]
        return self.aggregation(FIRST_LARGEST, lambda s: ops.component(s, name), oracle)

    def log_sum_exp(self):
        def in_weft(found):
            return ops.log(ops.component(found, "total")) + ops.component(found, "top")

        def in_numpy(x):
            top = x.max(-1, keepdims=True)
            return np.log(np.exp(x - top).sum(-1)) + top[..., 0]

        return self.aggregation(LOG_SUM_EXP, in_weft, in_numpy)


# Rewrites.


def aggregates(monoid, name):
    """The condition that a component of a monoid's elements is taken."""

    def condition(graph, match):
        found = match.attributes("component")["name"], match.attributes("aggregate")["monoid"]
        is_float = graph.values[match.values["x"]].dtype.startswith("float")
        return is_float and found == (name, monoid.name)

    return condition


def reduced(function):
    """A replacement by a reduction of Weft's along the same axes."""

    def replacement(v, match):
        given = match.attributes("aggregate")
        return function(v["x"], given["dimensions"], keepdims=given.get("keepdims", False))

    return replacement


def selected(v, match):
    """Dropout as it is defined: numbers are drawn, and elements selected by them."""
    given = match.attributes("dropout")
    kept = 1 - given["rate"]
    drawn = ops.random_uniform(v["k"], v["x"].shape)
    return ops.where(drawn < kept, v["x"] / kept, 0)


def halves(v, match):
    given = match.attributes("sum_dim")
    (dim,), keep = given["dimensions"], given.get("keepdims", False)
    before = (slice(None),) * dim
    half = v["x"].shape[dim] // 2
    one, two = (v["x"][(*before, part)] for part in (slice(0, half), slice(half, None)))
    return one.sum(dim, keepdims=keep) + two.sum(dim, keepdims=keep)


def has_halves(graph, match):
    given, x = match.attributes("sum_dim"), graph.values[match.values["x"]]
    is_one = len(given["dimensions"]) == 1 and x.shape[given["dimensions"][0]] > 1
    return is_one and not given.get("dtype") and x.dtype.startswith("float")


def is_log_sum_exp(graph, match):
    names = [a.attributes["name"] for a in match.applications if a.operator == "component"]
    made = {a.results for a in match.applications if a.operator == "aggregate"}
    monoid = match.attributes("aggregate")["monoid"]
    return names == ["total", "top"] and len(made) == 1 and monoid == LOG_SUM_EXP.name


def are_matrices(graph, match):
    return all(len(graph.values[name].shape) == 2 for name in match.values.values())


ELEMENTS = ("aggregate", "x")
REWRITES = [
    Rewrite("dropout as a selection", ("dropout", "x", "k"), selected),
    Rewrite(
        "the mean of moments as a mean",
        ("component", ELEMENTS),
        reduced(ops.mean),
        aggregates(WELFORD, "mean"),
    ),
    Rewrite(
        "the first of the largest as a maximum",
        ("component", ELEMENTS),
        reduced(ops.max),
        aggregates(FIRST_LARGEST, "value"),
    ),
    Rewrite(
        "log-sum-exp as Weft's",
        ("add", ("log", ("component", ELEMENTS)), ("component", ELEMENTS)),
        reduced(ops.logsumexp),
        is_log_sum_exp,
    ),
    Rewrite("relu as a maximum", ("relu", "x"), lambda v, _: ops.maximum(v["x"], 0)),
    Rewrite(
        "a product as a product of transposes",
        ("matmul", "x", "y"),
        lambda v, _: ops.transpose(ops.transpose(v["y"], (1, 0)) @ ops.transpose(v["x"], (1, 0))),
        are_matrices,
    ),
    Rewrite("a sum in halves", ("sum_dim", "x"), halves, has_halves),
]


def rewritten(rng, graph):
    """The graph with rewrites at some of the places where they match; each was checked there."""
    Alternatives.of(graph, (), fuses=False, unproved=REWRITES)
    names = []
    places = [(rewrite, match.root) for rewrite in REWRITES for match in rewrite.matches(graph)]
    for n in rng.permutation(len(places)):
        rewrite, root = places[n]
        is_there = any(match.root == root for match in rewrite.matches(graph))
        if is_there and (not names or rng.random() < 0.7):
            graph = rewrite.apply(graph, root)
            names.append(rewrite.name)
    return graph, names


# Plans.


def user_plan(seed, mesh=None):
    """A program, a plan of it, its inputs, and the names of the rewrites."""
    program, rng = UserProgram(seed), np.random.default_rng(seed)
    mesh = mesh or random_mesh(rng)
    names = [f"x{n}" for n in range(len(program.inputs))]
    graph = trace(
        lambda *symbols: run_steps(program, symbols),
        *program.inputs,
        names=names,
        meshes=[mesh],
        shardings={
            name: random_spec(rng, mesh, array.shape, monoids=())
            for name, array in zip(names, program.inputs)
        },
    )
    inputs = dict(zip(names, program.inputs))
    if seed % SEARCHED == 7 and len(graph.applications) < 40:
        front = search(graph, mesh, MACHINE, ["time"], budget=20, rewrites=REWRITES)
        return program, front[0], inputs, ["searched"]
    graph, applied = rewritten(rng, graph)
    if seed % 2:
        return program, Planner(rng, mesh).plan(graph), inputs, applied
    return program, Plan.of(propagate(graph)), inputs, applied


class UserGraph:
    """The graph of a program with its plan, its inputs, and its outputs as NumPy computes them."""

    same, is_exact = staticmethod(agree), True

    def __init__(self, seed):
        program, self.plan, self.inputs, _ = user_plan(seed)
        self.graph = self.plan.graph
        self.expected = [program.values[place] for place in program.outputs]

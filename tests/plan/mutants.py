"""Random programs with their plans, what NumPy says of them, and plans with something changed.

A program has pointwise operators, products, reductions by four monoids, windows, slices, reshapes,
loops and branches. Its plan is random, too: every placement that Weft allows, with operands that
stay partial, and every value in a sharding of its own. All numbers are small integers, so that what
is computed in any order is exactly what NumPy computes.
"""

from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import weft.runtime.walk
from tests.runtime.tensors import pieces, random_spec

import weft.plan.placed
from weft import DeviceMesh, DimSpec, Plan, ShardingSpec, Tensor, WeftError, run
from weft.lang import OPERATORS, Application, Graph, Value
from weft.lang.region import arguments, taken
from weft.plan.fetch import Fetch
from weft.plan.placed import place
from weft.plan.plan import LoopReshards
from weft.plan.resharding.parts import parts_between
from weft.plan.resharding.step import Step
from weft.plan.searching.choices import placements
from weft.space import ZRange
from weft.values import FrozenMap

MONOIDS = ("sum", "prod", "max", "min")
MESHES = [((2,), "x"), ((4,), "x"), ((3,), "x"), ((2, 2), "xy"), ((2, 3), "xy"), ((4, 2), "xy")]
TRIPS = 3
MOST_TRIPS = 20

# What NumPy says.

POINTWISE = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "negate": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "relu": lambda x: np.maximum(x, 0),
    "select": np.where,
}
REDUCED = {"sum_dim": np.sum, "prod_dim": np.prod, "max_dim": np.max, "min_dim": np.min}
COMPARED = {"LT": np.less, "GE": np.greater_equal}


def evaluate(graph, given):
    """The values of a graph, as NumPy computes them."""
    known = dict(given)
    for application in graph.applications:
        operands = [known[name] for name in application.operands]
        made = _evaluated(application, operands, known)
        known |= zip(application.results, made)
    return [known[name] for name in graph.outputs]


def _evaluated(application, operands, known):
    name, said = application.operator, application.attributes
    if name == "while":
        return _looped(application, operands, known)
    if name == "case":
        chosen = min(int(operands[0]), len(application.regions) - 1)
        return evaluate(application.regions[chosen], known)
    if name in POINTWISE:
        return [POINTWISE[name](*operands)]
    if name in REDUCED:
        found = REDUCED[name](operands[0], axis=tuple(said["dimensions"]))
        return [np.asarray(found, operands[0].dtype)]
    return [OTHERS[name](said, *operands)]


def _sliced(said, x):
    cuts = zip(said["start_indices"], said["limit_indices"], said["strides"])
    return x[tuple(slice(*cut) for cut in cuts)]


def _convolved(said, x, kernel):
    """A correlation of batch x feature x length with padding 1."""
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape[2], axis=2)
    return np.einsum("bcyu,fcu->bfy", windows, kernel)


OTHERS = {
    "constant": lambda said: np.full(said["result_shape"], said["value"], said["dtype"]),
    "compare": lambda said, x, y: COMPARED[said["comparison_direction"]](x, y),
    "matmul": lambda said, x, y: x @ y,
    "linear": lambda said, x, y, z: x @ y + z,
    "transpose": lambda said, x: np.transpose(x, said["permutation"]),
    "reshape": lambda said, x: x.reshape(said["result_shape"]),
    "concatenate": lambda said, *x: np.concatenate(x, said["dimension"]),
    "cumsum": lambda said, x: np.cumsum(x, said["dimension"]),
    "slice": _sliced,
    "convolution": _convolved,
}


def _looped(application, operands, known):
    condition, body = application.regions
    carried, trips = operands[: len(application.results)], 0
    names = [[value.name for value in arguments(application, r)] for r in (condition, body)]
    while evaluate(condition, {**known, **dict(zip(names[0], carried))})[0]:
        carried = evaluate(body, {**known, **dict(zip(names[1], carried))})
        trips += 1
        assert trips < MOST_TRIPS
    return carried


CONVOLUTION = {
    "input_batch_dimension": 0,
    "input_feature_dimension": 1,
    "input_spatial_dimensions": (2,),
    "kernel_output_feature_dimension": 0,
    "kernel_input_feature_dimension": 1,
    "kernel_spatial_dimensions": (2,),
    "output_batch_dimension": 0,
    "output_feature_dimension": 1,
    "output_spatial_dimensions": (2,),
    "padding": (1, 1),
}

# Programs.


class Writer:
    """Writes a graph, application by application; shapes are those of the numbers so far."""

    def __init__(self, rng, values, prefix="", depth=0, dtype="float64"):
        self.rng, self.prefix, self.depth, self.dtype = rng, prefix, depth, dtype
        self.shapes = dict(values)
        self.applications, self.count = [], 0
        self.kinds = [self.pointwise] * 4 + [self.unary] * 2 + [self.matmul] * 2
        self.kinds += [self.reduce] * 3 + [self.transpose, self.reshape, self.slice, self.cumsum]
        self.kinds += [self.convolution] * 3 + [self.slice, self.concatenate]
        self.kinds += [self.select, self.linear]
        self.kinds += [self.loop] * (depth < 2) + [self.choice] * (depth == 0)

    def fill(self, steps):
        while len(self.applications) < steps:
            self.kinds[int(self.rng.integers(len(self.kinds)))]()

    def any(self, rank=None):
        fit = [n for n, s in self.shapes.items() if rank is None or len(s) == rank]
        return str(self.rng.choice(fit)) if fit else None

    def alike(self, shape):
        fit = [name for name, other in self.shapes.items() if other == shape]
        return str(self.rng.choice(fit))

    def name(self):
        self.count += 1
        return f"{self.prefix}v{self.count}"

    def add(self, operator, operands, shape, said=(), regions=()):
        name = self.name()
        made = Application(operator, tuple(operands), (name,), FrozenMap(said), regions)
        self.applications.append(made)
        if shape is not None:
            self.shapes[name] = tuple(shape)
        return name

    def constant(self, value, dtype="int32", shape=()):
        said = {"value": value, "dtype": dtype, "result_shape": shape}
        return self.add("constant", (), None, said.items())

    def pointwise(self):
        a = self.any()
        operator = str(self.rng.choice(["add", "subtract", "multiply", "maximum", "minimum"]))
        self.add(operator, (a, self.alike(self.shapes[a])), self.shapes[a])

    def unary(self):
        a = self.any()
        operator = str(self.rng.choice(["negate", "relu", "abs", "sign"]))
        self.add(operator, (a,), self.shapes[a])

    def select(self):
        a = self.any()
        b, shape = self.alike(self.shapes[a]), self.shapes[a]
        said = {"comparison_direction": "LT"}.items()
        flag = self.add("compare", (a, b), None, said)
        self.add("select", (flag, a, b), shape)

    def matmul(self):
        a = self.any(2)
        fit = [n for n, s in self.shapes.items() if a and len(s) == 2 and s[0] == self.shapes[a][1]]
        if fit:
            b = str(self.rng.choice(fit))
            self.add("matmul", (a, b), (self.shapes[a][0], self.shapes[b][1]))

    def linear(self):
        a = self.any(2)
        fit = [n for n, s in self.shapes.items() if a and len(s) == 2 and s[0] == self.shapes[a][1]]
        for b in fit[:1]:
            bias = [n for n, s in self.shapes.items() if s == self.shapes[b][1:]]
            for c in bias[:1]:
                self.add("linear", (a, b, c), (self.shapes[a][0], self.shapes[b][1]))

    def reduce(self):
        a = self.any()
        shape = self.shapes[a]
        if not shape:
            return
        count = int(self.rng.integers(1, len(shape) + 1))
        dims = tuple(sorted(int(d) for d in self.rng.permutation(len(shape))[:count]))
        kept = [n for d, n in enumerate(shape) if d not in dims]
        operator = str(self.rng.choice(list(REDUCED)))
        self.add(operator, (a,), kept, {"dimensions": dims}.items())

    def transpose(self):
        a = self.any()
        order = tuple(int(d) for d in self.rng.permutation(len(self.shapes[a])))
        shape = [self.shapes[a][d] for d in order]
        self.add("transpose", (a,), shape, {"permutation": order}.items())

    def reshape(self):
        a = self.any()
        size = int(np.prod(self.shapes[a], dtype=int))
        first = int(self.rng.choice([n for n in range(1, size + 1) if size % n == 0]))
        shape = (first, size // first)
        self.add("reshape", (a,), shape, {"result_shape": shape}.items())

    def slice(self):
        a = self.any()
        cuts = []
        for size in self.shapes[a]:
            start = int(self.rng.integers(0, size))
            cuts.append((start, int(self.rng.integers(start + 1, size + 1)), 1))
        names = ("start_indices", "limit_indices", "strides")
        if cuts:
            said = dict(zip(names, zip(*cuts))).items()
            self.add("slice", (a,), [stop - start for start, stop, _ in cuts], said)

    def cumsum(self):
        a = self.any()
        if self.shapes[a]:
            dim = int(self.rng.integers(len(self.shapes[a])))
            self.add("cumsum", (a,), self.shapes[a], {"dimension": dim}.items())

    def concatenate(self):
        a = self.any(2)
        if a:
            rows, columns = self.shapes[a]
            b = self.alike(self.shapes[a])
            self.add("concatenate", (a, b), (2 * rows, columns), {"dimension": 0}.items())

    def convolution(self):
        a = self.any(3)
        kernels = [n for n, s in self.shapes.items() if len(s) == 3 and a]
        kernels = [k for k in kernels if self.shapes[k][1] == self.shapes[a][1]]
        kernels = [k for k in kernels if self.shapes[k][2] <= self.shapes[a][2] + 2]
        if kernels:
            k = str(self.rng.choice(kernels))
            length = self.shapes[a][2] + 3 - self.shapes[k][2]
            shape = (self.shapes[a][0], self.shapes[k][0], length)
            self.add("convolution", (a, k), shape, CONVOLUTION.items())

    def outside(self, inner, own):
        """What a region uses of the values around it."""
        used = [n for a in inner.applications for n in a.operands]
        made = {n for a in inner.applications for n in a.results}
        return [n for n in dict.fromkeys(used) if n not in made and n not in own]

    def loop(self):
        """A loop that counts, and changes one or two arrays."""
        carried = [self.any() for _ in range(int(self.rng.integers(1, 3)))]
        shapes = [self.shapes[name] for name in carried]
        start = self.constant(0)
        tag = self.name()
        names = [[f"{tag}{at}{n}" for n in range(len(carried) + 1)] for at in "cb"]
        values = [
            [
                Value(own[0], (), "int32"),
                *(Value(n, s, self.dtype) for n, s in zip(own[1:], shapes)),
            ]
            for own in names
        ]
        condition = Writer(self.rng, {}, f"{tag}c")
        less = {"comparison_direction": "LT"}.items()
        test = condition.add("compare", (names[0][0], condition.constant(TRIPS)), None, less)
        known = {**self.shapes, **dict(zip(names[1][1:], shapes))}
        body = Writer(self.rng, known, f"{tag}b", self.depth + 1, self.dtype)
        body.fill(int(self.rng.integers(1, 4)))
        step = body.add("add", (names[1][0], body.constant(1)), None)
        returned = [step, *(body.alike(shape) for shape in shapes)]
        outside = self.outside(body, names[1])
        outside = list(dict.fromkeys([*outside, *(n for n in returned if n in self.shapes)]))
        graphs = (
            Graph(values[0], condition.applications, [test]),
            Graph(
                [*values[1], *(Value(n, self.shapes[n], self.dtype) for n in outside)],
                body.applications,
                returned,
            ),
        )
        results = [self.name() for _ in range(len(carried) + 1)]
        operands = (start, *carried, *outside)
        self.applications.append(Application("while", operands, tuple(results), {}, graphs))
        self.shapes |= zip(results[1:], shapes)

    def choice(self):
        """Branches that are chosen by a sum of integers, or by a constant."""
        shape = self.shapes[self.any()]
        index = self.index()
        branches = []
        tag = self.name()
        for number in range(int(self.rng.integers(2, 4))):
            branch = Writer(self.rng, self.shapes, f"{tag}r{number}", self.depth + 1, self.dtype)
            branch.fill(int(self.rng.integers(1, 3)))
            out = branch.alike(shape)
            outside = self.outside(branch, [])
            outside += [out] * (out in self.shapes and out not in outside)
            inputs = [Value(n, self.shapes[n], self.dtype) for n in outside]
            branches.append(Graph(inputs, branch.applications, [out]))
        outside = list(dict.fromkeys(v.name for branch in branches for v in branch.inputs))
        name = self.name()
        made = Application("case", (index, *outside), (name,), {}, tuple(branches))
        self.applications.append(made)
        self.shapes[name] = shape

    def index(self):
        """The number of a branch: the sum of an array of integers."""
        said = {"dimensions": (0,)}.items()
        return self.add("sum_dim", ("index",), None, said)


class Program:
    """A graph, its inputs, and its outputs as NumPy computes them."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.dtype = "float64" if rng.random() < 0.6 else "int64"
        sizes = rng.choice([1, 2, 3, 4, 5, 6, 8], 3)
        a, b, c = (int(n) for n in sizes)
        shapes = [(a, b), (b, c), (a, b), (c,), (2, b, a), (3, b, 2), (a, b, c)]
        chosen = [int(n) for n in rng.permutation(len(shapes))[: int(rng.integers(2, 6))]]
        values = {f"x{n}": shapes[n] for n in sorted(chosen)}
        writer = Writer(rng, values, dtype=self.dtype)
        writer.fill(int(rng.integers(1, 7)))
        inputs = [Value(n, s, self.dtype) for n, s in values.items()]
        if any("index" in a.operands for a in writer.applications):
            inputs.append(Value("index", (4,), "int32"))
        used = {n for a in writer.applications for n in a.operands}
        made = [n for a in writer.applications for n in a.results if n not in used]
        outputs = [n for n in made if n in writer.shapes] or [inputs[0].name]
        self.graph = Graph(inputs, writer.applications, outputs)
        self.inputs = {v.name: rng.integers(-3, 4, v.shape).astype(v.dtype) for v in inputs}
        if "index" in self.inputs:
            self.inputs["index"] = rng.integers(0, 2, 4).astype("int32")
        self.expected = evaluate(self.graph, self.inputs)
        sizes = [np.abs(np.asarray(x, "float64")).max(initial=0) for x in self.expected]
        self.is_exact = all(size < 2**50 for size in sizes)


# Plans.


def random_mesh(rng):
    shape, names = MESHES[int(rng.integers(len(MESHES)))]
    count = int(np.prod(shape))
    ids = tuple(int(n) for n in rng.permutation(count)) if rng.random() < 0.3 else None
    return DeviceMesh("m", shape, tuple(names), device_ids=ids)


class Planner:
    """Makes a random plan of a graph: one that Weft allows, be it good or not."""

    def __init__(self, rng, mesh):
        self.rng, self.mesh = rng, mesh

    def spec(self, shape, monoids=()):
        return random_spec(self.rng, self.mesh, len(shape), monoids)

    def whole(self, shape):
        return ShardingSpec(self.mesh, [DimSpec(())] * len(shape))

    def plan(self, graph, given=None, outputs=None):
        given, specs, placed, regions = given or {}, {}, [], {}
        for value in graph.inputs:
            specs[value.name] = given.get(value.name) or self.spec(value.shape)
        for number, application in enumerate(graph.applications):
            placed.append(self.placed(graph, number))
            for name, made in zip(application.results, placed[-1].results):
                shape = graph.values[name].shape
                specs[name] = made if self.rng.random() < 0.6 else self.spec(shape)
            if application.regions:
                if application.operator == "case":
                    specs[application.operands[0]] = self.whole(())
                inner = self.regions(application, specs)
                regions[number] = inner
        if outputs is None:
            outputs = [self.spec(graph.values[name].shape) for name in graph.outputs]
        return Plan(
            graph,
            self.mesh,
            FrozenMap(specs.items()),
            tuple(outputs),
            tuple(placed),
            None,
            FrozenMap(regions.items()),
        )

    def placed(self, graph, number):
        application, line = graph.applications[number], graph.signatures[number]
        operator = OPERATORS.find(application.operator)
        keeps = ()
        if not application.regions and self.rng.random() < 0.5:
            monoid = str(self.rng.choice(MONOIDS))
            dtypes = [graph.values[name].dtype for name in application.operands]
            made = [graph.values[name].dtype for name in application.results]
            every = tuple(range(len(dtypes)))
            groups = operator.groups(monoid, line, dtypes, made)
            keeps = tuple((monoid, every if g is ... else tuple(g)) for g in groups)
        found = placements(self.mesh, line, keeps=keeps)
        return found[int(self.rng.integers(len(found)))]

    def regions(self, application, specs):
        outside = {name: specs[name] for name in taken(application)}
        if application.operator == "while":
            condition, body = application.regions
            own = [arguments(application, region) for region in (condition, body)]
            inside = [self.spec(value.shape) for value in own[1]]
            given = [
                outside | {value.name: spec for value, spec in zip(each, inside)} for each in own
            ]
            return (
                self.plan(condition, given[0], [self.whole(())]),
                self.plan(body, given[1], inside),
            )
        return tuple(self.plan(region, outside) for region in application.regions)


def agrees(program, plan):
    """Whether a run of a plan gives what NumPy gives."""
    given = {}
    for name, array in program.inputs.items():
        spec = plan.specs[name]
        copies = ShardingSpec(plan.mesh, [DimSpec(())] * array.ndim)
        given[name] = Tensor(array).with_sharding(copies) if spec.partial else array
    with bounded_loops(), np.errstate(all="ignore"):
        found = [output.numpy() for output in run(plan, given)]
    return all(
        one.shape == two.shape and np.array_equal(one, two)
        for one, two in zip(found, program.expected)
    )


# Mutants.


def altered(rng, moves):
    """Who sends what to whom, with one thing changed."""
    moves = list(moves)
    if not moves:
        return moves
    place_ = int(rng.integers(len(moves)))
    move = moves[place_]
    what = int(rng.integers(6))
    if what == 0:
        del moves[place_]
    elif what == 1:
        moves.insert(int(rng.integers(len(moves))), move)
    elif what == 2:
        moves[place_] = move._replace(sender=moves[int(rng.integers(len(moves)))].sender)
    elif what == 3:
        moves[place_] = move._replace(receiver=moves[int(rng.integers(len(moves)))].receiver)
    elif what == 4 and move.box.ndim:
        start = [low - (dim == 0) for dim, low in enumerate(move.box.start)]
        moves[place_] = move._replace(box=ZRange(start, move.box.stop))
    else:
        moves.sort(key=lambda move: move.sender)
    return moves


@dataclass(frozen=True)
class AlteredStep(Step):
    """A step that moves something else than its shardings say, or combines it otherwise."""

    seed: int = 0

    @classmethod
    def of(cls, step, seed):
        return cls(*(getattr(step, each.name) for each in fields(Step)), seed)

    @property
    def monoids(self):
        found = parts_between(self.before, self.after)
        names = {"sum": "max", "max": "sum", "min": "sum", "prod": "sum"}
        return tuple(
            names[run.monoid] if self.seed % 4 == 0 else run.monoid for run in found.reduced
        )

    @property
    def parts(self):
        found = parts_between(self.before, self.after)
        return found._replace(masked=found.masked[1:]) if self.seed % 4 == 1 else found

    def moves(self):
        found = Step.moves(self)
        return altered(np.random.default_rng(self.seed), found) if self.seed % 4 > 1 else found


class AlteredFetch(Fetch):
    """A fetch that moves something else than what is needed."""

    @cached_property
    def transfers(self):
        return tuple(altered(np.random.default_rng(0), Fetch.transfers.func(self)))


class Mutator:
    """Changes one thing in a plan, or in that of a region."""

    def __init__(self, rng, mesh):
        self.rng, self.mesh = rng, mesh
        self.ways = [
            *(self.graph_operands, self.graph_operator, self.graph_attributes),
            *(self.graph_operands, self.spec, self.spec, self.output, self.spec_device_order),
            *(self.box, self.boxes_swapped, self.replaced, self.placement, self.signature),
            *(self.partials_monoid, self.partials_dropped, self.partials_added),
            *(self.result_monoid, self.result_spec, self.kept, self.kept, self.swapped_placed),
            *(self.delivery_reshard, self.delivery_reshard, self.delivery_hidden),
            *(self.delivery_slices, self.delivery_fetch, self.delivery_fetch, self.needs),
            *(self.settling, self.settling, self.returned, self.around_regions),
        ]

    def mutant(self, plan):
        """A changed plan and the name of the change; None where it cannot be made here."""
        numbers = list(plan.regions)
        if numbers and self.rng.random() < 0.6:
            number = self.pick(numbers)
            inner = list(plan.regions[number])
            place_ = int(self.rng.integers(len(inner)))
            found = self.mutant(inner[place_])
            if found is None:
                return None
            inner[place_] = found[0]
            application = plan.graph.applications[number]
            graphs = tuple(each.graph for each in inner)
            changed = replace(
                plan, regions=FrozenMap({**plan.regions, number: tuple(inner)}.items())
            )
            if graphs != application.regions and self.rng.random() < 0.5:
                made = self.with_application(plan, number, application._replace(regions=graphs))
                changed = made and replace(changed, graph=made.graph)
            return changed and (changed, f"region: {found[1]}")
        for _ in range(20):
            way = self.pick(self.ways)
            try:
                changed = way(plan)
            except (WeftError, IndexError):
                continue
            if changed is not None:
                return changed, way.__name__
        return None

    def pick(self, items):
        items = list(items)
        if not items:
            raise IndexError("there is nothing to change")
        return items[int(self.rng.integers(len(items)))]

    def two(self, items):
        """The places of two items."""
        a = self.pick(range(len(items)))
        return a, self.pick(n for n in range(len(items)) if n != a)

    def application(self, plan, least=0):
        fit = [
            n
            for n, a in enumerate(plan.graph.applications)
            if not a.regions and len(a.operands) >= least
        ]
        return self.pick(fit)

    # The graph.

    def with_application(self, plan, number, application):
        graph = plan.graph
        applications = list(graph.applications)
        applications[number] = application
        made = Graph(graph.inputs, applications, graph.outputs)
        if made.signatures[number].sizes != graph.signatures[number].sizes:
            return None
        placed = list(plan.placed)
        placed[number] = replace(placed[number], signature=made.signatures[number])
        return replace(plan, graph=made, placed=tuple(placed))

    def graph_operands(self, plan):
        number = self.application(plan, 2)
        application = plan.graph.applications[number]
        operands = list(application.operands)
        if self.rng.random() < 0.5:
            operands.reverse()
        else:
            shape = plan.graph.values[operands[0]]
            before = {v.name for v in plan.graph.inputs}
            before |= {n for a in plan.graph.applications[:number] for n in a.results}
            fit = [
                v.name
                for v in plan.graph.values.values()
                if v[1:] == shape[1:] and v.name in before
            ]
            operands[0] = self.pick(fit)
        if tuple(operands) == application.operands:
            return None
        return self.with_application(plan, number, application._replace(operands=tuple(operands)))

    def graph_operator(self, plan):
        number = self.application(plan)
        application = plan.graph.applications[number]
        kinds = [
            ["add", "subtract", "multiply", "maximum", "minimum"],
            ["negate", "relu", "abs", "sign"],
            list(REDUCED),
        ]
        for names in kinds:
            if application.operator in names:
                other = self.pick(n for n in names if n != application.operator)
                return self.with_application(plan, number, application._replace(operator=other))
        return None

    def graph_attributes(self, plan):
        number = self.application(plan)
        application = plan.graph.applications[number]
        said = dict(application.attributes)
        if application.operator == "slice":
            for name in ("start_indices", "limit_indices"):
                said[name] = tuple(n - 1 for n in said[name])
            if min(said["start_indices"], default=-1) < 0:
                return None
        elif application.operator == "compare":
            said["comparison_direction"] = "GE"
        elif application.operator == "constant":
            said["value"] += 1
        elif application.operator == "convolution":
            said["padding"] = (2, 0)
        elif application.operator == "cumsum":
            said["dimension"] = (said["dimension"] + 1) % 2
        else:
            return None
        changed = application._replace(attributes=FrozenMap(said.items()))
        return self.with_application(plan, number, changed)

    # How values lie.

    def other_spec(self, spec, shape):
        """A sharding that is not this one."""
        monoids = ("sum", "max") if self.rng.random() < 0.4 else ()
        for _ in range(10):
            if spec.partial and self.rng.random() < 0.4:
                names = {"sum": "max", "max": "sum", "prod": "sum", "min": "max"}
                parts = {axis: names[monoid] for axis, monoid in spec.partial.items()}
                found = ShardingSpec(self.mesh, spec.dim_specs, (), parts)
            elif spec.partial and self.rng.random() < 0.4:
                found = ShardingSpec(self.mesh, spec.dim_specs)
            else:
                found = random_spec(self.rng, self.mesh, len(shape), monoids)
            if found != spec:
                return found
        return spec

    def spec(self, plan):
        name = self.pick(plan.specs)
        other = self.other_spec(plan.specs[name], plan.graph.values[name].shape)
        return replace(plan, specs=FrozenMap({**plan.specs, name: other}.items()))

    def spec_device_order(self, plan):
        name = self.pick(plan.specs)
        spec, count = plan.specs[name], self.mesh.size
        ids = tuple(int(n) for n in self.rng.permutation(count))
        mesh = DeviceMesh(self.mesh.name, self.mesh.shape, self.mesh.axis_names, device_ids=ids)
        other = ShardingSpec(mesh, spec.dim_specs, (), spec.partial)
        return replace(plan, specs=FrozenMap({**plan.specs, name: other}.items()))

    def output(self, plan):
        number = int(self.rng.integers(len(plan.outputs)))
        outputs = list(plan.outputs)
        shape = plan.graph.values[plan.graph.outputs[number]].shape
        outputs[number] = self.other_spec(outputs[number], shape)
        return replace(plan, outputs=tuple(outputs))

    # Placements.

    def with_placed(self, plan, number, **fields):
        placed = list(plan.placed)
        placed[number] = replace(placed[number], **fields)
        return replace(plan, placed=tuple(placed))

    def changed_box(self, box):
        start, stop = list(box.start), list(box.stop)
        dim = self.pick(range(len(start)))
        which, by = self.pick([start, stop]), self.pick([-1, 1])
        which[dim] += by
        if self.rng.random() < 0.3:
            start[dim], stop[dim] = box.start[dim] + by, box.stop[dim] + by
        return ZRange(start, stop)

    def box(self, plan):
        number = self.application(plan)
        boxes = list(plan.placed[number].boxes)
        cell = int(self.rng.integers(len(boxes)))
        boxes[cell] = self.changed_box(boxes[cell])
        return self.with_placed(plan, number, boxes=tuple(boxes))

    def boxes_swapped(self, plan):
        number = self.application(plan)
        boxes = list(plan.placed[number].boxes)
        a, b = self.two(boxes)
        boxes[a], boxes[b] = boxes[b], boxes[a]
        return self.with_placed(plan, number, boxes=tuple(boxes))

    def needs(self, plan):
        number = self.application(plan, 1)
        needs = [list(each) for each in plan.placed[number].needs]
        each = self.pick(needs)
        cell = int(self.rng.integers(len(each)))
        each[cell] = self.changed_box(each[cell])
        return self.with_placed(plan, number, needs=tuple(map(tuple, needs)))

    def replaced(self, plan):
        """Another placement: all that follows changes with it."""
        number = self.application(plan)
        line = plan.graph.signatures[number]
        placement = {name: [] for name in line.sizes}
        for axis in pieces(self.rng, self.mesh):
            if self.rng.random() < 0.7:
                placement[self.pick(line.sizes)].append(axis)
        with unchecked_placements() if self.rng.random() < 0.5 else nullcontext():
            return self._placed_as(plan, number, place(self.mesh, line, placement))

    def kept(self, plan):
        """Operands that stay partial, whatever the operator says of it."""
        number = self.application(plan, 1)
        placed, line = plan.placed[number], plan.graph.signatures[number]
        used = {str(axis) for axes in placed.placement.values() for axis in axes}
        free = [axis for axis in self.mesh.axis_names if axis not in used]
        count = len(line.notation.operands)
        group = [n for n in range(count) if self.rng.random() < 0.6] or [0]
        kept = {self.pick(free): (self.pick(MONOIDS), group)}
        with unchecked_placements():
            return self._placed_as(plan, number, place(self.mesh, line, placed.placement, kept))

    def _placed_as(self, plan, number, placed):
        """The placement, and what it makes kept as it is made, so that nothing is finished."""
        every = list(plan.placed)
        every[number] = placed
        specs = dict(plan.specs)
        for name, made in zip(plan.graph.applications[number].results, placed.results):
            if self.rng.random() < 0.5:
                specs[name] = made
        return replace(plan, placed=tuple(every), specs=FrozenMap(specs.items()))

    def signature(self, plan):
        """An application placed as another one is, whose index space is as large."""
        number, other = self.two(plan.placed)
        one, two = plan.placed[number].signature, plan.placed[other].signature
        sizes = [tuple(line.sizes.values()) for line in (one, two)]
        return (
            None
            if one == two or sizes[0] != sizes[1]
            else self.with_placed(plan, number, signature=two)
        )

    def placement(self, plan):
        """The axes of the index dimensions alone, with nothing that follows."""
        number = self.application(plan)
        placement = dict(plan.placed[number].placement)
        name = self.pick(placement)
        placement[name] = placement[name][1:] or (self.pick(self.mesh.axis_names),)
        return self.with_placed(plan, number, placement=FrozenMap(placement.items()))

    def partials_monoid(self, plan):
        number = self.application(plan, 1)
        partials = list(plan.placed[number].partials)
        place_ = self.pick([n for n, parts in enumerate(partials) if parts])
        partials[place_] = FrozenMap((axis, "max") for axis in partials[place_])
        return self.with_placed(plan, number, partials=tuple(partials))

    def partials_dropped(self, plan):
        number = self.application(plan, 1)
        partials = list(plan.placed[number].partials)
        partials[self.pick([n for n, parts in enumerate(partials) if parts])] = FrozenMap(())
        return self.with_placed(plan, number, partials=tuple(partials))

    def partials_added(self, plan):
        number = self.application(plan, 1)
        partials = list(plan.placed[number].partials)
        place_ = int(self.rng.integers(len(partials)))
        added = {**partials[place_], self.pick(self.mesh.axis_names): self.pick(MONOIDS)}
        partials[place_] = FrozenMap(added.items())
        return self.with_placed(plan, number, partials=tuple(partials))

    def result_monoid(self, plan):
        """The parts of a result relabelled, in the placement and where they are kept."""
        number = self.application(plan)
        results, specs = list(plan.placed[number].results), dict(plan.specs)
        names = plan.graph.applications[number].results
        place_ = self.pick([n for n, spec in enumerate(results) if spec.partial])
        monoid = self.pick(MONOIDS)
        spec = results[place_]
        parts = dict.fromkeys(spec.partial, monoid)
        results[place_] = ShardingSpec(self.mesh, spec.dim_specs, (), parts)
        if specs[names[place_]].partial:
            dims = specs[names[place_]].dim_specs
            kept = dict.fromkeys(specs[names[place_]].partial, monoid)
            specs[names[place_]] = ShardingSpec(self.mesh, dims, (), kept)
        changed = self.with_placed(plan, number, results=tuple(results))
        return replace(changed, specs=FrozenMap(specs.items()))

    def result_spec(self, plan):
        number = self.application(plan)
        results = list(plan.placed[number].results)
        place_ = int(self.rng.integers(len(results)))
        shape = plan.graph.signatures[number].result_shapes[place_]
        results[place_] = self.other_spec(results[place_], shape)
        return self.with_placed(plan, number, results=tuple(results))

    def swapped_placed(self, plan):
        placed = list(plan.placed)
        a, b = self.two(placed)
        if placed[a].signature != placed[b].signature or placed[a] == placed[b]:
            return None
        placed[a], placed[b] = placed[b], placed[a]
        return replace(plan, placed=tuple(placed))

    # What moves.

    def with_cached(self, plan, name, value):
        changed = replace(plan)
        changed.__dict__[name] = value
        return changed

    def changed_reshard(self, way):
        """Steps dropped, repeated, in another order, or between other shardings."""
        steps = list(way.steps)
        if not steps:
            return None
        place_ = int(self.rng.integers(len(steps)))
        what = self.pick(["drop", "repeat", "order", "before", "after", "kind", "none", *[""] * 5])
        if what == "drop":
            del steps[place_]
        elif what == "repeat":
            steps.insert(place_, steps[place_])
        elif what == "order":
            steps.reverse()
        elif what == "none":
            steps = []
        elif what == "":
            seed = int(self.rng.integers(1 << 30))
            steps[place_] = AlteredStep.of(steps[place_], seed)
        elif what == "kind":
            kinds = ["slice", "mask", "exchange", "all_gather"]
            steps[place_] = replace(steps[place_], kind=self.pick(kinds))
        else:
            other = self.other_spec(getattr(steps[place_], what), way.shape)
            steps[place_] = replace(steps[place_], **{what: other})
        return replace(way, steps=tuple(steps))

    def changed_delivery(self, plan, change):
        number = self.application(plan, 1)
        deliveries = [list(each) for each in plan.deliveries]
        place_ = int(self.rng.integers(len(deliveries[number])))
        changed = change(deliveries[number][place_])
        if changed is None:
            return None
        deliveries[number][place_] = changed
        return self.with_cached(plan, "deliveries", tuple(map(tuple, deliveries)))

    def delivery_reshard(self, plan):
        def change(delivery):
            if delivery.reshard is None:
                return None
            changed = self.changed_reshard(delivery.reshard)
            return changed and replace(delivery, reshard=changed)

        return self.changed_delivery(plan, change)

    def delivery_hidden(self, plan):
        def change(delivery):
            hidden = list(delivery.hidden)
            what = self.pick(["none", "monoid", "cell", "all"]) if any(hidden) else "cell"
            if what == "none":
                hidden = [""] * len(hidden)
            elif what == "monoid":
                hidden = [h and self.pick(m for m in MONOIDS if m != h) for h in hidden]
            elif what == "all":
                hidden = [next(filter(None, hidden))] * len(hidden)
            else:
                cell = int(self.rng.integers(len(hidden)))
                hidden[cell] = "" if hidden[cell] else self.pick(MONOIDS)
            return replace(delivery, hidden=tuple(hidden))

        return self.changed_delivery(plan, change)

    def delivery_slices(self, plan):
        def change(delivery):
            slices = list(delivery.slices)
            cell = int(self.rng.integers(len(slices)))
            if slices[cell] is None:
                return None
            by = self.pick([-1, 1])
            part = [slice(max(0, cut.start + by), cut.stop + by) for cut in slices[cell]]
            slices[cell] = None if self.rng.random() < 0.3 else tuple(part)
            return replace(delivery, slices=tuple(slices))

        return self.changed_delivery(plan, change)

    def delivery_fetch(self, plan):
        def change(delivery):
            fetch = delivery.fetch
            if fetch is None:
                return None
            what = self.pick(["drop", "needs", "needs", "src", "moves", "moves"])
            if what == "drop":
                return replace(delivery, fetch=None)
            if what == "moves":
                changed = AlteredFetch(fetch.src, fetch.shape, fetch.needs)
                return replace(delivery, fetch=changed)
            if what == "src":
                other = self.other_spec(fetch.src, fetch.shape)
                return replace(delivery, fetch=Fetch(other, fetch.shape, fetch.needs))
            needs = list(fetch.needs)
            cell = int(self.rng.integers(len(needs)))
            needs[cell] = self.changed_box(needs[cell]) & ZRange.of(fetch.shape)
            return replace(delivery, fetch=Fetch(fetch.src, fetch.shape, tuple(needs)))

        return self.changed_delivery(plan, change)

    def settling(self, plan):
        number = self.application(plan)
        settlings = [list(each) for each in plan.result_reshards]
        changed = self.changed_reshard(settlings[number][0])
        if changed is None:
            return None
        settlings[number][0] = changed
        return self.with_cached(plan, "settlings", tuple(map(tuple, settlings)))

    def returned(self, plan):
        returns = list(plan.returns)
        place_ = int(self.rng.integers(len(returns)))
        changed = self.changed_reshard(returns[place_])
        if changed is None:
            return None
        returns[place_] = changed
        return self.with_cached(plan, "returns", tuple(returns))

    def around_regions(self, plan):
        """The reshards at the borders of loops and branches."""
        number = self.pick(plan.regions)
        if number in plan.loop_reshards:
            entry, leave = map(list, plan.loop_reshards[number])
            ways = self.pick([entry, leave])
            place_ = int(self.rng.integers(len(ways)))
            ways[place_] = self.changed_reshard(ways[place_])
            if ways[place_] is None:
                return None
            found = LoopReshards(tuple(entry), tuple(leave))
            return self.with_cached(plan, "loop_reshards", {**plan.loop_reshards, number: found})
        branches = [list(each) for each in plan.branch_reshards[number]]
        branch = self.pick(branches)
        branch[0] = self.changed_reshard(branch[0])
        if branch[0] is None:
            return None
        found = tuple(map(tuple, branches))
        return self.with_cached(plan, "branch_reshards", {**plan.branch_reshards, number: found})


@contextmanager
def unchecked_placements():
    """Let `place` cut what must be seen whole."""
    before = weft.plan.placed._check
    weft.plan.placed._check = lambda *_: None
    try:
        yield
    finally:
        weft.plan.placed._check = before


class TooLongError(Exception):
    """A loop that does not end."""


@contextmanager
def bounded_loops():
    """Stop loops that a change made endless."""
    before, runs = weft.runtime.walk._Walk._goes_on, [0]

    def goes_on(self, *given):
        runs[0] += 1
        if runs[0] > 40 * MOST_TRIPS:
            raise TooLongError
        return before(self, *given)

    weft.runtime.walk._Walk._goes_on = goes_on
    try:
        yield
    finally:
        weft.runtime.walk._Walk._goes_on = before

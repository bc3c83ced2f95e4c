"""Random graphs, plans of them, what NumPy computes for them, and runs of their programs.

A graph has pointwise operators, products, reductions by monoids of Weft and of users, windows,
slices, reshapes, dropout, loops and branches. Its plan is random, too: every placement that Weft
allows, with operands that stay partial, cut points at random, and every value in a sharding of its
own. All numbers are small integers, so that what is computed in any order is exactly what NumPy
computes.
"""

from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
from tests.program.enumerating import CellLayout, is_empty, slices
from tests.runtime import threefry
from tests.runtime.monoids import FIRST_LARGEST, FIRST_SMALLEST, PARITY, SUM_OF_USERS
from tests.runtime.tensors import pieces, random_spec

from weft import DeviceMesh, DimSpec, LayoutError, Plan, ShardingSpec
from weft.lang import OPERATORS, Application, Graph, Value
from weft.lang.region import arguments, captured
from weft.plan.placed import kept_of, place
from weft.plan.searching.choices import placements
from weft.program import Storage
from weft.runtime import local
from weft.values import FrozenMap

MONOIDS = ("sum", "prod", "max", "min")
MESHES = [((2,), "x"), ((4,), "x"), ((3,), "x"), ((2, 2), "xy"), ((2, 3), "xy"), ((4, 2), "xy")]
MESHES += [((1, 4), "xy")]
TRIPS = 3
MOST_TRIPS = 20

# What NumPy computes.

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
    name, attributes = application.operator, application.attributes
    if name == "while":
        return _looped(application, operands, known)
    if name == "case":
        chosen = min(int(operands[0]), len(application.regions) - 1)
        return evaluate(application.regions[chosen], known)
    if name in POINTWISE:
        return [POINTWISE[name](*operands)]
    if name in REDUCED:
        found = REDUCED[name](operands[0], axis=tuple(attributes["dimensions"]))
        return [np.asarray(found, operands[0].dtype)]
    return [OTHERS[name](attributes, *operands)]


def _sliced(attributes, x):
    cuts = zip(attributes["start_indices"], attributes["limit_indices"], attributes["strides"])
    return x[tuple(slice(*cut) for cut in cuts)]


def _convolved(attributes, x, kernel):
    """A correlation of batch x feature x length with padding 1."""
    padded = np.pad(x, [(0, 0), (0, 0), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape[2], axis=2)
    return np.einsum("bcyu,fcu->bfy", windows, kernel)


def _aggregated(attributes, x):
    (dim,) = attributes["dimensions"]
    match attributes["monoid"]:
        case "first_largest":
            return {"value": x.max(dim), "place": x.argmax(dim)}
        case "first_smallest":
            return {"value": x.min(dim), "place": x.argmin(dim)}
        case "parity":
            return np.bitwise_xor.reduce(x, dim)
    return x.sum(dim)


OTHERS = {
    "aggregate": _aggregated,
    "component": lambda attributes, x: x[attributes["name"]],
    "dropout": lambda attributes, x, key: threefry.dropout(x, attributes["rate"], int(key[1])),
    "constant": lambda attributes: np.full(
        attributes["result_shape"], attributes["value"], attributes["dtype"]
    ),
    "compare": lambda attributes, x, y: COMPARED[attributes["comparison_direction"]](x, y),
    "matmul": lambda attributes, x, y: x @ y,
    "linear": lambda attributes, x, y, z: x @ y + z,
    "transpose": lambda attributes, x: np.transpose(x, attributes["permutation"]),
    "reshape": lambda attributes, x: x.reshape(attributes["result_shape"]),
    "concatenate": lambda attributes, *x: np.concatenate(x, attributes["dimension"]),
    "cumsum": lambda attributes, x: np.cumsum(x, attributes["dimension"]),
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
        self.kinds += [self.select, self.linear, self.aggregate, self.aggregate]
        self.kinds += [self.dropout] * (dtype == "float64")
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

    def add(self, operator, operands, shape, attributes=(), regions=()):
        name = self.name()
        made = Application(operator, tuple(operands), (name,), FrozenMap(attributes), regions)
        self.applications.append(made)
        if shape is not None:
            self.shapes[name] = tuple(shape)
        return name

    def constant(self, value, dtype="int32", shape=()):
        attributes = {"value": value, "dtype": dtype, "result_shape": shape}
        return self.add("constant", (), None, attributes.items())

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
        attributes = {"comparison_direction": "LT"}.items()
        flag = self.add("compare", (a, b), None, attributes)
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

    def aggregate(self):
        """A reduction by a monoid of a user's, of one component or of two."""
        a = self.any()
        if not self.shapes[a]:
            return
        dim = int(self.rng.integers(len(self.shapes[a])))
        kept = [n for d, n in enumerate(self.shapes[a]) if d != dim]
        is_pair = self.dtype == "float64" or self.rng.random() < 0.5
        pairs, others = (FIRST_LARGEST, FIRST_SMALLEST), (PARITY, SUM_OF_USERS)
        monoid = (pairs if is_pair else others)[int(self.rng.integers(2))]
        attributes = {"dimensions": (dim,), "monoid": monoid.name}.items()
        found = self.add("aggregate", (a,), None if is_pair else kept, attributes)
        if is_pair:
            name = "place" if self.dtype == "int64" and self.rng.random() < 0.5 else "value"
            attributes = {"name": name, "result_shape": tuple(kept)}.items()
            self.add("component", (found,), kept, attributes)

    def dropout(self):
        """Half of the elements twice, the others not: exact in floats."""
        a = self.any()
        key = self.constant((0, int(self.rng.integers(99))), "uint32", (2,))
        self.add("dropout", (a, key), self.shapes[a], {"rate": 0.5}.items())

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
            attributes = dict(zip(names, zip(*cuts))).items()
            self.add("slice", (a,), [stop - start for start, stop, _ in cuts], attributes)

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
        attributes = {"dimensions": (0,)}.items()
        return self.add("sum_dim", ("index",), None, attributes)


class RandomGraph:
    """A graph, its inputs, and its outputs as NumPy computes them."""

    same = staticmethod(np.array_equal)
    """Whether two arrays are the same: to the last bit, as all numbers are small integers."""

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


def random_points(rng, count, size):
    """Points that cut a dimension into a number of blocks, or None for blocks of one size."""
    if rng.random() < 0.3:
        return None
    return tuple(sorted(int(n) for n in rng.integers(0, size + 1, count - 1)))


def blocks_of(placed):
    """The number of blocks of each index dimension that is cut, 0 for others."""
    index = placed.index
    return [count if dim.axes else 0 for dim, count in zip(index.dim_specs, index.grid)]


class Planner:
    """Makes a random plan of a graph: one that Weft allows, be it good or not."""

    def __init__(self, rng, mesh, monoids=()):
        self.rng, self.mesh = rng, mesh
        self.monoids = monoids
        """The monoids by which inputs may be partial."""

    def spec(self, shape, monoids=()):
        return random_spec(self.rng, self.mesh, shape, monoids)

    def input_spec(self, value):
        """A sharding of an input, often partial; branches are chosen by whole numbers."""
        is_partial = value.name != "index" and self.rng.random() < 0.3
        return self.spec(value.shape, self.monoids if is_partial else ())

    def whole(self, shape):
        return ShardingSpec(self.mesh, [DimSpec(())] * len(shape))

    def plan(self, graph, given=None, outputs=None):
        given, specs, placed, regions = given or {}, {}, [], {}
        for value in graph.inputs:
            specs[value.name] = given.get(value.name) or self.input_spec(value)
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
        groups = ()
        if not application.regions and self.rng.random() < 0.5:
            monoid = str(self.rng.choice(MONOIDS))
            dtypes = [graph.values[name].dtype for name in application.operands]
            made = [graph.values[name].dtype for name in application.results]
            every = tuple(range(len(dtypes)))
            found = operator.groups(monoid, line, dtypes, made)
            groups = tuple((monoid, every if g is ... else tuple(g)) for g in found)
        if not application.regions and self.rng.random() < 0.3:
            placed = self.placed_by_parts_of_axes(line, groups)
            if placed is not None:
                return placed
        found = placements(self.mesh, line, groups=groups)
        placed = found[int(self.rng.integers(len(found)))]
        if application.regions or self.rng.random() < 0.6:
            return placed
        cuts = {
            name: DimSpec(dim.axes, cut_points=random_points(self.rng, count, line.sizes[name]))
            for (name, dim), count in zip(placed.cuts.items(), filter(None, blocks_of(placed)))
        }
        try:
            return place(self.mesh, line, cuts, kept_of(placed))
        except LayoutError:
            return placed

    def placed_by_parts_of_axes(self, line, groups):
        """A placement by axes and parts of axes; None where the operator does not allow it."""
        cuts, kept = {name: [] for name in line.sizes}, {}
        free = [name for name in line.sizes if name not in line.fixed]
        for axis in pieces(self.rng, self.mesh):
            chance = self.rng.random()
            if groups and chance < 0.4:
                kept[axis] = groups[0]
            elif free and chance < 0.9:
                cuts[str(self.rng.choice(free))].append(axis)
        try:
            return place(self.mesh, line, cuts, kept)
        except LayoutError:
            return None

    def regions(self, application, specs):
        outside = {name: specs[name] for name in captured(application)}
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


# Runs.


class TooLongError(Exception):
    """A loop that does not end."""


@contextmanager
def bounded_loops():
    """Stop loops that a change made endless."""
    call, calls = local._Executor._call, [0]

    def bounded(self, *given):
        calls[0] += 1
        if calls[0] > 40 * MOST_TRIPS:
            raise TooLongError
        return call(self, *given)

    with patch.object(local._Executor, "_call", bounded):
        yield


IDENTITIES = {"sum": 0, "prod": 1, "max": -(2**60), "min": 2**60, "sum_of_users": 0, "parity": 0}
COMBINED = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
COMBINED |= {"sum_of_users": np.add, "parity": np.bitwise_xor}


def scatter(array, layout):
    """The shards of an array: of several parts, the first has the values."""
    cells, shards = CellLayout(layout), []
    for box, label in zip(cells.boxes, cells.labels):
        shard = array[slices(box)].copy()
        rest = label
        for size, monoid in reversed(cells.parts):
            rest, at = divmod(rest, size)
            if at:
                shard = np.full_like(shard, IDENTITIES[monoid])
        shards.append(shard)
    return shards


def gather(shards, layout, same=np.array_equal):
    """The array that shards are of; None where copies differ, or a point is nowhere."""
    cells = CellLayout(layout)
    parts = [np.zeros(cells.shape, shards[0].dtype) for _ in range(cells.part_count)]
    known = [np.zeros(cells.shape, bool) for _ in parts]
    for shard, box, label in zip(shards, cells.boxes, cells.labels):
        if shard.shape != tuple(high - low for low, high in box):
            return None
        if not is_empty(box):
            at = slices(box)
            if not same(parts[label][at][known[label][at]], shard[known[label][at]]):
                return None
            parts[label][at], known[label][at] = shard, True
    if not all(each.all() for each in known):
        return None
    for size, monoid in reversed(cells.parts):
        groups = [parts[n : n + size] for n in range(0, len(parts), size)]
        parts = [COMBINED[monoid].reduce(group) for group in groups]
    return parts[0]


def random_storage(rng, plan, share=0.7):
    """Chunks and shards of some inputs and outputs."""
    graph, found = plan.graph, {}
    for name in dict.fromkeys([*(value.name for value in graph.inputs), *graph.outputs]):
        shape = graph.values[name].shape
        chunk = [int(n) for n in rng.integers(1, 4, len(shape))]
        shard = [int(n * m) for n, m in zip(chunk, rng.integers(1, 3, len(shape)))]
        is_input = name not in graph.outputs or any(name == v.name for v in graph.inputs)
        spec = plan.specs[name] if is_input else plan.outputs[graph.outputs.index(name)]
        if rng.random() < share and not spec.partial:
            found[name] = Storage(shape, chunk, shard, plan.itemsize(name))
    return found


def run_program(program, inputs, same=np.array_equal):
    """The outputs of a program on NumPy arrays; those that are stored are read back."""
    buffers, main = program.buffers, program.main
    graph, stored = program.graphs[0], {}
    for name in program.storage:
        value = graph.values[name]
        stored[name] = inputs[name] if name in inputs else np.full(value.shape, -77, value.dtype)
    layouts = [buffers[buffer] for buffer in main.arguments]
    given = [scatter(inputs[buffer.value], buffer.layout) for buffer in layouts]
    with bounded_loops(), np.errstate(all="ignore"):
        made = local.execute(program, np, given, storage=stored)
    layouts = [buffers[buffer].layout for buffer in main.results]
    returned = (gather(shards, layout, same) for shards, layout in zip(made, layouts))
    written = set(stored) - set(inputs)
    found = []
    for name in graph.outputs:
        found.append(stored[name] if name in written else next(returned))
        written.discard(name)  # where it comes first
    return found


def agrees(graph, program):
    """Whether a run of a program gives what NumPy gives."""
    found = run_program(program, graph.inputs, graph.same)
    return all(
        one is not None and one.shape == two.shape and graph.same(one, two)
        for one, two in zip(found, graph.expected, strict=True)
    )

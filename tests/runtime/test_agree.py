"""The same annotated program, eager, traced and planned: the same shardings, the same numbers."""

import numpy as np
import pytest
from tests.runtime.tensors import pieces, random_mesh, with_points
from tests.trials import trials

from weft import DimSpec, Plan, ShardingSpec, Tensor, ops, propagate, run, trace

PROGRAMS = trials(60)
"""Random programs: 60 in `make test`, thousands in `make fuzz`."""


def random_annotation(rng, mesh, shape):
    """A sharding with sub-axes, priorities, open and closed dimensions, and replicated axes."""
    ndim = len(shape)
    dims, replicated = [[] for _ in range(ndim)], []
    for axis in pieces(rng, mesh):
        chance = rng.random()
        if chance < 0.5 and ndim:
            dims[int(rng.integers(0, ndim))].append(axis)
        elif chance < 0.6:
            replicated.append(axis)
    said = [
        DimSpec(axes, bool(rng.random() < 0.5), int(rng.choice([0, 0, 0, 1, 2]))) for axes in dims
    ]
    return with_points(rng, ShardingSpec(mesh, said, replicated), shape)


class Program:
    """A random program: inputs with annotations, and steps of which each uses earlier values."""

    def __init__(self, seed):
        self.rng = rng = np.random.default_rng(seed)
        self.mesh = random_mesh(rng)
        self.dtype = str(rng.choice(["int32", "float32", "float64"]))
        self.inputs, self.steps, shapes = [], [], []
        for _ in range(int(rng.integers(1, 4))):
            shape = tuple(int(n) for n in rng.choice([1, 2, 3, 4, 6, 8], rng.integers(1, 4)))
            array = rng.integers(-3, 4, shape).astype(self.dtype)
            spec = random_annotation(rng, self.mesh, shape) if rng.random() < 0.8 else None
            self.inputs.append((array, spec))
            shapes.append(shape)
        for _ in range(int(rng.integers(1, 11))):
            shapes.append(self._add(shapes))
        self._prune()

    def _add(self, shapes):
        rng, number = self.rng, len(shapes)
        source = int(rng.integers(max(0, number - 3), number))
        shape = shapes[source]
        kinds = [self._pointwise, self._pair, self._constrain, self._reduce, self._matmul]
        kinds += [self._transpose, self._reshape, self._slice, self._pair, self._concatenate]
        function, operands = kinds[int(rng.integers(0, len(kinds)))](source, shape, shapes)
        self.steps.append((function, operands))
        arrays = [np.zeros(shapes[n], self.dtype) for n in operands]
        return tuple(function(*map(Tensor, arrays)).shape)

    def _prune(self):
        """Keep what leads to the last value: nothing else is part of an eager program."""
        count = len(self.inputs)
        needed = {count + len(self.steps) - 1}
        for number in reversed(range(len(self.steps))):
            if count + number in needed:
                needed.update(self.steps[number][1])
        kept = {old: new for new, old in enumerate(sorted(needed))}
        self.steps = [
            (function, [kept[n] for n in operands])
            for number, (function, operands) in enumerate(self.steps)
            if count + number in kept
        ]
        self.inputs = [pair for number, pair in enumerate(self.inputs) if number in kept]

    def __call__(self, *values):
        known = list(values)
        for function, operands in self.steps:
            known.append(function(*(known[n] for n in operands)))
        return known[-1]

    def _pointwise(self, source, shape, shapes):
        functions = [ops.relu, abs, lambda x: -x, lambda x: x * 3, lambda x: 2 - x]
        return functions[int(self.rng.integers(0, len(functions)))], [source]

    def _pair(self, source, shape, shapes):
        same = [n for n, other in enumerate(shapes) if other == shape]
        other = same[int(self.rng.integers(0, len(same)))]
        functions = [lambda x, y: x + y, lambda x, y: x - y, ops.maximum]
        return functions[int(self.rng.integers(0, 3))], [source, other]

    def _constrain(self, source, shape, shapes):
        spec = random_annotation(self.rng, self.mesh, shape)
        return lambda x: x.with_sharding(spec), [source]

    def _reduce(self, source, shape, shapes):
        if not shape:
            return self._pointwise(source, shape, shapes)
        dim = int(self.rng.integers(0, len(shape)))
        keep = bool(self.rng.random() < 0.3)
        function = [ops.sum, ops.max][int(self.rng.integers(0, 2))]
        return lambda x: function(x, dim, keepdims=keep).astype(self.dtype), [source]

    def _matmul(self, source, shape, shapes):
        fits = [n for n, s in enumerate(shapes) if len(s) == 2 and len(shape) == 2]
        fits = [n for n in fits if shapes[n][0] == shape[1]]
        if not fits:
            if len(shape) != 2:
                return self._pointwise(source, shape, shapes)
            return lambda x: x @ x.T, [source]
        return lambda x, y: x @ y, [source, fits[int(self.rng.integers(0, len(fits)))]]

    def _transpose(self, source, shape, shapes):
        order = [int(n) for n in self.rng.permutation(len(shape))]
        return lambda x: x.transpose(order) if order else x + 0, [source]

    def _reshape(self, source, shape, shapes):
        size, made = int(np.prod(shape, dtype=int)), []
        while size > 1 and len(made) < 2:
            divisors = [n for n in range(1, size + 1) if size % n == 0]
            made.append(int(self.rng.choice(divisors)))
            size //= made[-1]
        made.append(size)
        return lambda x: x.reshape(tuple(made)), [source]

    def _slice(self, source, shape, shapes):
        index = []
        for n in shape:
            start = int(self.rng.integers(0, n))
            step = int(self.rng.choice([1, 1, 2]))
            index.append(slice(start, int(self.rng.integers(start + 1, n + 1)), step))
        return lambda x: x[tuple(index)], [source]

    def _concatenate(self, source, shape, shapes):
        if not shape:
            return self._pointwise(source, shape, shapes)
        dim = int(self.rng.integers(0, len(shape)))
        return lambda x, y: ops.concatenate([x, y], dim), [source, source]


def annotated(array, spec):
    tensor = Tensor(array)
    return tensor if spec is None else tensor.with_sharding(spec)


def axes(spec):
    """What a sharding says of where blocks lie; on no mesh every cell has the whole."""
    return None if spec is None else tuple(dim.axes for dim in spec.dim_specs)


@pytest.mark.parametrize("group", range(6))
def test_random_programs_mean_the_same_three_ways(group):
    for seed in range(group, PROGRAMS, 6):
        program = Program(seed)
        arrays = [array for array, _ in program.inputs]
        names = [f"x{n}" for n in range(len(arrays))]
        said = {n: spec for n, (_, spec) in zip(names, program.inputs) if spec is not None}
        graph = trace(program, *arrays, names=names, meshes=[program.mesh], shardings=said)
        plan = Plan.of(propagate(graph))
        (planned,) = run(plan, dict(zip(names, arrays)))

        tensors = [annotated(array, spec) for array, spec in program.inputs]
        eager = program(*tensors)
        traced = program(*(tensor.trace() for tensor in tensors)).run()

        how = f"seed {seed}:\n{graph}"
        expected = program(*map(Tensor, arrays)).numpy()
        for found in (eager, traced, planned):
            assert found.dtype == str(expected.dtype), how
            assert np.array_equal(found.numpy(), expected), how
        assert planned.spec == plan.outputs[0]
        whole = ((),) * expected.ndim
        assert (axes(eager.spec) or whole) == axes(planned.spec), how
        assert axes(traced.spec) == axes(planned.spec), how

"""Modules of torch on random meshes and under random shardings, beside torch itself."""

import numpy as np
import torch

from weft import Graph, Plan, communication, from_torch, propagate, run

MESHES = ('@m = <["x"=2, "y"=2]>', '@m = <["x"=3]>', '@m = <["x"=2, "y"=4]>', '@m = <["y"=4]>')


def named(graph, module, args):
    """The inputs of a graph by name: those of the module, and the arguments in their order."""
    state = dict([*module.named_parameters(), *module.named_buffers()])
    given = iter(args)
    return {
        value.name: (state[value.name] if value.name in state else next(given)).detach()
        for value in graph.inputs
    }


def random_sharding(rng, mesh, shape):
    """Every axis of a mesh on some dimension, or on none."""
    dims = [[] for _ in shape]
    axes = [part.split("=")[0] for part in mesh.partition("[")[2].rpartition("]")[0].split(", ")]
    for axis in rng.sample(axes, len(axes)):
        if shape and rng.random() < 0.6:
            dims[rng.randrange(len(shape))].append(axis)
    return f"<@m, [{', '.join('{' + ', '.join(dim) + '}' for dim in dims)}]>"


def sharded(graph, rng, likely=0.4):
    """The graph on a random mesh, with random shardings on some of its inputs and values."""
    mesh = rng.choice(MESHES)
    inputs = {value.name for value in graph.inputs}
    chosen = {n for n in graph.values if rng.random() < (likely if n in inputs else likely / 6)}
    return Graph(
        graph.inputs,
        graph.applications,
        graph.outputs,
        [mesh],
        {n: random_sharding(rng, mesh, graph.values[n].shape) for n in graph.values if n in chosen},
        operators=graph.operators,
        dtypes={name: value.dtype for name, value in graph.values.items()},
    )


def wanted(module, args):
    with torch.no_grad():
        return list(torch.utils._pytree.tree_leaves(module(*args)))


def compare(module, args, rng, graph=None, tolerance=1e-5):
    """Run a module on shards and by torch; what moves is what was planned."""
    graph = graph or from_torch(module, *args)
    plan = Plan.of(propagate(sharded(graph, rng)))
    plan.verify()
    with communication() as moved:
        found = run(plan, named(graph, module, args))
    assert moved.received == sum(plan.received)
    expected = wanted(module, args)
    assert len(found) == len(expected)
    for one, two in zip(found, expected):
        got, want = one.numpy(), two.numpy()
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=str(plan))
        else:
            np.testing.assert_array_equal(got, want, err_msg=str(plan))


class Of(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)

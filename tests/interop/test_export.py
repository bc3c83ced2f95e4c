"""Modules of torch as graphs: random networks on random shards, names, and what is refused."""

import subprocess
import sys
from itertools import pairwise
from random import Random

import numpy as np
import pytest
import torch
from tests.interop.exported import Of, compare
from torch import nn

from weft import (
    DeviceMesh,
    Graph,
    Plan,
    ShardingSpec,
    WeftError,
    from_torch,
    propagate,
    run,
    search,
)
from weft.lang.graph_json import from_json, to_json
from weft.lang.size import Size

SEEDS = range(6)


def perceptron(rng):
    """Linear layers of any width, with any activation between them."""
    wide = [rng.choice([3, 4, 6, 8, 12]) for _ in range(rng.randint(2, 4))]
    layers = []
    for one, two in pairwise(wide):
        bend = rng.choice([nn.ReLU(), nn.GELU(), nn.Tanh(), nn.SiLU(), nn.Softmax(-1)])
        layers += [nn.Linear(one, two, bias=rng.random() < 0.7), bend, nn.Dropout(0.5)]
    batch = rng.choice([(4,), (8,), (2, 6), ()])
    return nn.Sequential(*layers), [torch.randn(*batch, wide[0])]


class Transformer(nn.Module):
    """Tokens to logits, through blocks of attention and two layers; the head is the table."""

    def __init__(self, rng):
        super().__init__()
        self.heads, self.causal = rng.choice([2, 4]), rng.random() < 0.5
        self.features = 4 * self.heads
        self.table = nn.Embedding(11, self.features)
        self.places = nn.Parameter(torch.randn(6, self.features) / 4)
        norm = rng.choice([nn.LayerNorm, nn.RMSNorm])
        self.norms = nn.ModuleList(norm(self.features) for _ in range(2))
        self.qkv = nn.Linear(self.features, 3 * self.features)
        self.out = nn.Linear(self.features, self.features)
        hidden = 3 * self.features
        self.ff = nn.Sequential(
            nn.Linear(self.features, hidden),
            nn.GELU(rng.choice(["none", "tanh"])),
            nn.Linear(hidden, self.features),
        )
        self.register_buffer("mask", torch.ones(6, 6).tril().bool())
        self.masked = rng.random() < 0.5
        self.split = rng.choice(["chunk", "unflatten"])

    def attend(self, x):
        if self.split == "chunk":
            parts = [each.unflatten(-1, (self.heads, 4)) for each in self.qkv(x).chunk(3, -1)]
        else:
            parts = self.qkv(x).unflatten(-1, (3, self.heads, 4)).unbind(2)
        q, k, v = (each.transpose(1, 2) for each in parts)
        mask = self.mask if self.masked else None
        causal = self.causal and not self.masked
        made = nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)
        return self.out(made.transpose(1, 2).flatten(2))

    def forward(self, tokens):
        x = self.table(tokens) + self.places[: tokens.shape[1]]
        x = x + self.attend(self.norms[0](x))
        x = x + self.ff(self.norms[1](x))
        return x @ self.table.weight.T


def transformer(rng):
    return Transformer(rng), [torch.randint(0, 11, (rng.choice([2, 4]), 6))]


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels, made, stride):
        super().__init__()
        self.one = nn.Conv2d(channels, made, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(made, made, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(made) for _ in range(3))
        self.short = nn.Conv2d(channels, made, 1, stride, bias=False)

    def forward(self, x):
        y = torch.relu(self.norms[0](self.one(x)))
        y = self.norms[1](self.two(y))
        return torch.relu(y + self.norms[2](self.short(x)))


def residual(rng):
    channels, size = rng.choice([4, 6]), rng.choice([8, 9, 12])
    pool = rng.choice([nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2), nn.MaxPool2d(2, ceil_mode=True)])
    module = nn.Sequential(
        nn.Conv2d(3, channels, rng.choice([3, 5]), 1, rng.choice([1, 2])),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        pool,
        Residual(channels, 8, rng.choice([1, 2])),
        nn.AdaptiveAvgPool2d(rng.choice([1, 2])),
        nn.Flatten(),
        nn.LazyLinear(5),
    )
    image = torch.randn(2, 3, size, size)
    for norm in [each for each in module.modules() if isinstance(each, nn.BatchNorm2d)]:
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
    module(image)
    return module, [image]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [perceptron, transformer, residual], ids=lambda f: f.__name__)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_networks_on_random_shards(kind, seed):
    rng = Random(seed)
    torch.manual_seed(seed)
    module, args = kind(rng)
    module.eval()
    graph = from_torch(module, *args)
    for _ in range(2):
        compare(module, args, rng, graph, tolerance=2e-5)


@pytest.mark.parametrize("kind", [transformer, residual], ids=lambda f: f.__name__)
def test_core_aten_programs_give_the_same(kind):
    """Programs that were taken apart to the end, as `run_decompositions()` does it."""
    module, args = kind(Random(1))
    with pytest.warns(FutureWarning, match="LeafSpec"):
        program = torch.export.export(module.eval(), tuple(args)).run_decompositions()
    graph = from_torch(program)
    assert "attention" not in {application.operator for application in graph.applications}
    compare(module, args, Random(2), graph, tolerance=2e-5)


def test_inputs_have_the_names_of_the_module():
    module, args = transformer(Random(0))
    graph = from_torch(module.eval(), *args)
    names = [value.name for value in graph.inputs]
    assert {*names} == {*module.state_dict(), "tokens"}
    assert graph.values["qkv.weight"].shape == tuple(module.qkv.weight.shape)
    assert from_json(to_json(graph)) == graph


def test_a_value_and_an_input_of_one_name():
    class Add(nn.Module):
        def __init__(self):
            super().__init__()
            self.add = nn.Parameter(torch.randn(4))

        def forward(self, x):
            return (x + self.add) * self.add + self.add

    compare(Add(), [torch.randn(8, 4)], Random(0))


def test_trees_and_keywords():
    def function(given, *, scale):
        return {"sum": given["a"] + given["b"][0] * scale, "same": given["a"]}

    class Module(nn.Module):
        def forward(self, given, *, scale):
            return function(given, scale=scale)

    given = {"a": torch.ones(3), "b": [torch.ones(3)]}
    graph = from_torch(Module(), given, kwargs={"scale": torch.ones(3)})
    assert [value.name for value in graph.inputs] == ["given_a", "given_b_0", "scale"]
    assert graph.outputs == ("add", "given_a")


def test_shardings_are_written_into_the_graph_and_searched_with():
    mesh = DeviceMesh("m", (2, 2), ("x", "y"))
    rows = ShardingSpec.parse('<@m, [{"x"}, {}]>', mesh)
    module = nn.Linear(8, 4)
    said = {"shardings": {"input": rows}, "output_shardings": {0: rows}}
    graph = from_torch(module, torch.zeros(16, 8), **said)
    assert propagate(graph).specs["input"] == rows
    for plan in search(graph, mesh):
        assert (plan.specs["input"], plan.outputs[0]) == (rows, rows)


def refused(module, *args, **kwargs):
    with pytest.raises(WeftError) as found:
        from_torch(module, *args, **kwargs)
    return str(found.value), getattr(found.value, "__notes__", [])


X = torch.randn(4, 6)


def test_an_operator_that_is_not_covered_is_named_with_its_line():
    class Running(nn.Module):
        def forward(self, x):
            return x.logcumsumexp(1)  # the line

    said, notes = refused(Running(), X)
    line = Running.forward.__code__.co_firstlineno + 1
    assert said == (
        "aten.logcumsumexp.default is not an operator that Weft reads at "
        f"{__file__}, line {line}: return x.logcumsumexp(1)  # the line"
    )
    assert notes == ["hint: write it with others, or add a function to weft.interop.aten.TABLE"]


@pytest.mark.parametrize(
    ("function", "message", "hint"),
    [
        (
            lambda x: x.index_put((x > 0,), x[0], accumulate=True),
            "aten.index_put.default: an index by a mask is not supported at ",
            "torch.where(mask, x, 0): its shape is known",
        ),
        (
            lambda x: x.scatter_reduce(0, x.long().abs() % 4, x, "mean"),
            "aten.scatter_reduce.two: scatter_reduce by 'mean' with include_self=True is not "
            "supported at ",
            "sum, prod, amax or amin, with include_self=True",
        ),
        (
            lambda x: x * torch.arange(0.5, 6.5, 1.0),
            "aten.arange.start_step: arange from 0.5 in steps of 1.0 is not supported at ",
            "count in whole numbers",
        ),
        (
            lambda x: torch.linalg.vector_norm(x, 3),
            "aten.linalg_vector_norm.default: a norm of order 3 is not supported at ",
            "take 1, 2 or inf",
        ),
        (
            lambda x: x[:1].var(0),
            "aten.var.correction: "
            "a variance of 1 elements with a correction of 1 is not supported at ",
            None,
        ),
        (
            lambda x: nn.functional.avg_pool2d(x[None], 3, 2, 1, ceil_mode=True),
            "aten.avg_pool2d.default: a mean of windows beyond the padding (ceil_mode=True) "
            "is not supported at ",
            "count_include_pad=False, or ceil_mode=False",
        ),
    ],
)
def test_what_is_refused(function, message, hint):
    x = torch.randn(4, 7) if "avg_pool2d" in message else X
    said, notes = refused(Of(function), x)
    assert said.startswith(message)
    assert said.endswith(": return self.function(*args)")
    assert notes == ([] if hint is None else [f"hint: {hint}"])


def test_training_is_refused():
    said, notes = refused(nn.Sequential(nn.BatchNorm1d(6)), X)
    assert said == (
        "the program has a buffer mutation, 0.running_mean: a graph cannot mutate its inputs"
    )
    assert notes == ["hint: switch the module to inference: module.eval()"]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.heads, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        batch, tokens, width = x.shape
        parts = self.heads(self.norm(x)).split(width, dim=2)
        q, k, v = (part.view(batch, tokens, 2, 4).transpose(1, 2) for part in parts)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).contiguous().view(batch, tokens, width))


class OfOne(nn.Module):
    """A function of one tensor."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


DYNAMIC = [
    (Attention(), (2, 6, 8), ("b", "t")),
    (nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4)), (3, 8), ("b",)),
    (
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(2), nn.Flatten()),
        (2, 3, 8, 8),
        "b",
    ),
    (OfOne(lambda x: x.reshape(x.shape[0] * 2, 4).softmax(-1)), (3, 8), ("b",)),
    (OfOne(lambda x: x.cumsum(0).T @ x), (3, 8), ("b",)),
    (OfOne(lambda x: torch.cat([x, x * 2]).mean(0)), (3, 8), ("b",)),
    (OfOne(lambda x: (x / x.shape[0]).var(0) / x.shape[0] ** 0.5 + x.numel()), (3, 8), ("b",)),
    (OfOne(lambda x: nn.functional.pad(x, (0, 0, 0, -x.shape[0] % 4))), (3, 8), ("b",)),
]


@pytest.mark.parametrize("case", range(len(DYNAMIC)))
def test_dynamic_shapes_are_sizes_that_are_bound_later(case):
    module, shape, names = DYNAMIC[case]
    module.eval()
    dims = {n: torch.export.Dim(name) for n, name in enumerate(names)}
    graph = from_torch(module, torch.randn(shape), dynamic_shapes=(dims,))
    assert graph.unknown_sizes == tuple(sorted(names))
    state = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    (name,) = (value.name for value in graph.inputs if value.name not in state)
    for size in (2, 5, 9):
        x = torch.randn(size, *(size + n for n in range(1, len(names))), *shape[len(names) :])
        sizes = {each: size + n for n, each in enumerate(names)}
        (y,) = run(Plan.of(propagate(mesh_of(graph)), **sizes), state | {name: x.numpy()})
        assert np.allclose(y.numpy(), module(x).detach().numpy(), atol=1e-5)


def mesh_of(graph):
    text = {name: value.dtype for name, value in graph.values.items()}
    return Graph(
        graph.inputs,
        graph.applications,
        graph.outputs,
        ['@m = <["x"=2]>'],
        dtypes=text,
        conditions=graph.conditions,
    )


def test_sizes_in_containers_have_the_names_of_their_dimensions():
    rows = torch.export.Dim("rows")
    given = [torch.randn(4, 6), torch.randn(4, 6)]
    dims = {"x": [{0: rows}, {0: rows}]}
    graph = from_torch(OfOne(lambda x: x[0] + x[1]), given, dynamic_shapes=dims)
    assert [value.shape[0] for value in graph.inputs] == [Size.parse("rows")] * 2


def test_an_exported_program_has_the_names_and_ranges_of_torch():
    rows = torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(nn.Linear(6, 4), (X,), dynamic_shapes={"input": {0: rows}})
    graph = from_torch(program)
    (name,) = graph.unknown_sizes
    assert graph.conditions == (f"{name} >= 2", f"{name} <= 64")
    with pytest.raises(WeftError, match=f"{name}=65 does not meet the condition {name} <= 64"):
        graph.bind({name: 65})


def test_a_large_constant_is_refused():
    table = torch.randn(300, 300)
    said, notes = refused(Of(lambda x: x + table), torch.randn(300, 300))
    assert said.endswith("is a constant of 90000 elements, and a graph keeps 65536")
    assert notes == ["hint: make it a buffer of the module: register_buffer"]


def test_an_output_that_is_not_a_tensor_is_refused():
    said, _ = refused(Of(lambda x: (x, 3)), X)
    assert said == "the program returns 3, which is not a tensor"


def test_an_exported_program_takes_no_further_arguments():
    program = torch.export.export(nn.Linear(6, 4), (X,))
    said, notes = refused(program, X)
    assert said == "an exported program has its arguments already"
    assert notes == ["hint: give it to from_torch alone"]


def test_without_torch_an_error_says_what_to_install():
    code = "import sys; sys.modules['torch'] = None; import weft; weft.from_torch"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    said = "programs of torch need torch, which is not installed: pip install 'weft[torch]'"
    assert f"ModuleNotFoundError: {said}" in ran.stderr

"""Residual networks: the layers of the papers, and the numbers of a direct implementation."""

import tracemalloc
from math import prod

import numpy as np
import pytest
from examples.resnet import (
    IMAGE,
    RELU,
    RESNET18,
    RESNET20,
    RESNET50,
    Architecture,
    build,
    check_ranges,
    forward,
    mini,
    parameter_values,
    parameters,
    table,
)
from numpy.lib.stride_tricks import sliding_window_view

from weft.ckks.activations import fit, square
from weft.errors import WeftError
from weft.lang.graph_json import from_json, to_json


def made_by(graph, operator):
    return [each for each in graph.applications if each.operator == operator]


def normalised_channels(graph):
    """The channels after convolutions: batch normalisation has a scale and a shift for each."""
    return sum(graph.values[each.results[0]].shape[1] for each in made_by(graph, "convolution"))


@pytest.mark.parametrize(
    ("architecture", "convolutions", "published"),
    [(RESNET18, 20, 11_689_512), (RESNET50, 53, 25_557_032), (RESNET20, 21, 272_474)],
)
def test_parameters_are_those_of_the_architecture(architecture, convolutions, published):
    """As torchvision counts them (ResNet-20 as the paper has it, with projections): of a scale and
    a shift for each channel one number is left, the bias."""
    graph = build(architecture)
    assert len(made_by(graph, "convolution")) == convolutions
    assert len(made_by(graph, "linear")) == 1
    count = sum(prod(value.shape) for value in parameter_values(graph))
    assert count == published - normalised_channels(graph)


@pytest.mark.parametrize(
    ("architecture", "shapes"),
    [
        (
            RESNET18,
            {
                "conv1": (64, 112, 112),
                "pool": (64, 56, 56),
                "layer1.1.act2": (64, 56, 56),
                "layer2.0.downsample": (128, 28, 28),
                "layer3.0.conv1": (256, 14, 14),
                "layer4.1.add": (512, 7, 7),
                "mean": (512,),
                "fc": (1000,),
            },
        ),
        (
            RESNET50,
            {
                "layer1.0.conv1": (64, 56, 56),
                "layer1.0.downsample": (256, 56, 56),
                "layer2.0.conv1": (128, 56, 56),
                "layer2.0.conv2": (128, 28, 28),
                "layer4.2.conv1": (512, 7, 7),
                "layer4.2.conv3": (2048, 7, 7),
                "fc": (1000,),
            },
        ),
        (RESNET20, {"conv1": (16, 32, 32), "layer3.2.act2": (64, 8, 8), "fc": (10,)}),
    ],
)
def test_shapes_of_layers(architecture, shapes):
    graph = build(architecture)
    for name, shape in shapes.items():
        assert graph.values[name].shape == (1, *shape), name
    assert graph.outputs == ("fc",)
    assert graph.inputs[0].name == IMAGE


def test_the_layer_of_the_seed_is_there():
    graph = build(RESNET50)
    (layer,) = (each for each in graph.applications if each.results == ("layer4.1.conv1",))
    assert [graph.values[name].shape for name in layer.operands] == [
        (1, 2048, 7, 7),
        (512, 2048, 1, 1),
        (512,),
    ]


def test_a_graph_reads_back():
    graph = build(mini(), square(-6, 6))
    assert from_json(to_json(graph)) == graph


# A direct implementation, which shares nothing with the language.


def conv(x, weight, bias, stride, padding):
    x = np.pad(x, [(0, 0), (padding, padding), (padding, padding)])
    windows = sliding_window_view(x, weight.shape[2:], (1, 2))[:, ::stride, ::stride]
    return np.einsum("cyxuv,fcuv->fyx", windows, weight) + bias[:, None, None]


def pool(x):
    windows = sliding_window_view(np.pad(x, [(0, 0), (1, 1), (1, 1)]), (3, 3), (1, 2))
    return windows[:, ::2, ::2].mean((-2, -1))


def network(architecture, weights, image, activation):
    def layer(name, x, stride=1):
        weight = weights[f"{name}.weight"]
        return conv(x, weight, weights[f"{name}.bias"], stride, weight.shape[2] // 2)

    def block(name, x, stride):
        y = x
        last = 3 if architecture.bottleneck else 2
        strided = last - 1 if architecture.bottleneck else 1
        for number in range(1, last + 1):
            y = layer(f"{name}.conv{number}", y, stride if number == strided else 1)
            y = activation(y) if number < last else y
        if f"{name}.downsample.weight" in weights:
            x = layer(f"{name}.downsample", x, stride)
        return activation(y + x)

    x = activation(layer("conv1", image, architecture.stem_stride))
    x = pool(x) if architecture.pools else x
    for number, stage in enumerate(architecture.stages, 1):
        for place in range(stage.blocks):
            x = block(f"layer{number}.{place}", x, 1 if place else stage.stride)
    return x.mean((1, 2)) @ weights["fc.weight"] + weights["fc.bias"]


SMALL = [
    mini(),
    mini(channels=3, blocks=(2, 1), size=9, classes=4),
    RESNET20,
    Architecture("tiny50", RESNET50.stages[:2], True, 8, 7, 2, True, 32, 5),
]


@pytest.mark.parametrize("architecture", SMALL, ids=lambda a: a.name)
@pytest.mark.parametrize("activation", [RELU, fit("gelu", 6, -6, 10)], ids=lambda a: a.name)
def test_numbers_of_networks(architecture, activation):
    graph = build(architecture, activation)
    weights = parameters(graph, seed=3)
    image = np.random.default_rng(5).normal(size=(1, 3, architecture.size, architecture.size))
    values = forward(graph, {IMAGE: image, **weights})
    wanted = network(architecture, weights, image[0], activation)
    np.testing.assert_allclose(values["fc"][0], wanted, atol=1e-9)


@pytest.mark.parametrize("architecture", [mini(), mini(8, (2, 2, 2)), RESNET20])
@pytest.mark.parametrize("seed", range(3))
def test_values_stay_in_the_range(architecture, seed):
    graph = build(architecture)
    image = np.random.default_rng(seed).normal(size=graph.inputs[0].shape)
    values = forward(graph, {IMAGE: image, **parameters(graph, seed)})
    check_ranges(graph, values)
    values["layer2.0.add"] = values["layer2.0.add"] * 100
    with pytest.raises(WeftError, match=r"^layer2\.0\.act2: the value .* is outside of \[-8, 8\]"):
        check_ranges(graph, values)


def test_weights_are_random_and_the_same_for_a_seed():
    graph = build(mini())
    one, again, other = parameters(graph, 1), parameters(graph, 1), parameters(graph, 2)
    assert {*one} == {value.name for value in parameter_values(graph)}
    assert all((one[name] == again[name]).all() for name in one)
    assert any((one[name] != other[name]).any() for name in one)
    assert all(one[value.name].shape == value.shape for value in parameter_values(graph))


def test_a_graph_holds_no_weights():
    """25 million of them would take 200 MB."""
    tracemalloc.start()
    try:
        build(RESNET50)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 5_000_000


def test_the_table_has_a_line_for_each_layer():
    lines = table(build(RESNET18)).splitlines()
    assert len(lines) == 21
    assert lines[0].split() == ["conv1", "convolution", "64x112x112", "9,472"]
    assert lines[-1].split() == ["fc", "linear", "1000", "513,000"]

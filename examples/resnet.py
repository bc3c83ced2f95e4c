"""Residual networks as graphs, ready for ciphertexts: ResNet-18, ResNet-50, ResNet-20, small ones.

Batch normalisation is folded into the convolutions, activations are polynomials, and the first
pooling is an average, as encryption has sums and products only. A graph has shapes and no weights;
`parameters` makes some.

    python -m examples.resnet
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft import Graph, ops, propagate, run
from weft.ckks.activations import Activation, fit
from weft.lang.graph import Application, Value
from weft.lang.trace import Symbol, Tracer

RELU = fit("relu", 4, -8, 8)
"""The activation unless another is given."""

IMAGE = "image"
"""The name of the input that is not a parameter."""


class Stage(NamedTuple):
    """Blocks of one width, of which the first has a stride."""

    blocks: int
    channels: int
    stride: int


@dataclass(frozen=True, slots=True)
class Architecture:
    """The parameters of a residual network."""

    name: str
    stages: tuple[Stage, ...]
    bottleneck: bool
    """Blocks of 1 x 1, 3 x 3 and 1 x 1 to four times the channels; else of two 3 x 3."""
    stem: int
    """The channels of the first convolution."""
    stem_window: int
    stem_stride: int
    pools: bool
    """Whether a pool with stride 2 follows the first convolution."""
    size: int
    """The height and the width of an image, which has three channels."""
    classes: int


def _stages(blocks: Sequence[int], channels: int) -> tuple[Stage, ...]:
    """Stages that halve the image and double the channels, but for the first."""
    return tuple(Stage(n, channels << k, 1 + (k > 0)) for k, n in enumerate(blocks))


RESNET18 = Architecture("resnet18", _stages((2, 2, 2, 2), 64), False, 64, 7, 2, True, 224, 1000)
RESNET50 = Architecture("resnet50", _stages((3, 4, 6, 3), 64), True, 64, 7, 2, True, 224, 1000)
RESNET20 = Architecture("resnet20", _stages((3, 3, 3), 16), False, 16, 3, 1, False, 32, 10)
NAMED = {each.name: each for each in (RESNET18, RESNET50, RESNET20)}


def mini(
    channels: int = 4, blocks: Sequence[int] = (1, 1, 1), size: int = 16, classes: int = 10
) -> Architecture:
    """A small network of the kind of ResNet-20.

    >>> build(mini()).values["fc"].shape
    (1, 10)
    """
    return Architecture(
        "mini", _stages(blocks, channels), False, channels, 3, 1, False, size, classes
    )


def build(
    architecture: Architecture, activation: Activation = RELU, dtype: str = "float64"
) -> Graph:
    """The graph of a network for one image: its inputs are the image and the parameters.

    >>> graph = build(RESNET18)
    >>> graph.values["layer4.0.conv1"]
    Value(name='layer4.0.conv1', shape=(1, 512, 7, 7), dtype='float64')
    """
    network = _Network(activation, dtype)
    x = network.input(IMAGE, (1, 3, architecture.size, architecture.size))
    padding = architecture.stem_window // 2
    x = network.convolve(
        "conv1", x, architecture.stem, architecture.stem_window, architecture.stem_stride, padding
    )
    x = network.activate("act1", x)
    if architecture.pools:
        pooled = {"window": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}
        x = network.named("pool", ops.avg_pool(x, **pooled))
    block = network.bottleneck if architecture.bottleneck else network.basic
    for number, stage in enumerate(architecture.stages, 1):
        for place in range(stage.blocks):
            stride = 1 if place else stage.stride
            x = block(f"layer{number}.{place}", x, stage.channels, stride)
    x = network.named("mean", ops.mean(x, (2, 3)))
    return network.graph(network.linear("fc", x, architecture.classes))


def resnet18() -> Graph:
    """ResNet-18 for images of 224 x 224: `weft ckks plan examples.resnet:resnet18`."""
    return build(RESNET18)


def resnet50() -> Graph:
    """ResNet-50 for images of 224 x 224."""
    return build(RESNET50)


def resnet20() -> Graph:
    """ResNet-20 for images of 32 x 32."""
    return build(RESNET20)


class _Network:
    """A network that is being traced, whose values have the names of its layers."""

    def __init__(self, activation: Activation, dtype: str) -> None:
        self.tracer, self.activation, self.dtype = Tracer(), activation, dtype
        self.names: dict[str, str] = {}

    def input(self, name: str, shape: Sequence[int]) -> Symbol:
        return self.tracer.input(name, shape, self.dtype, parameter=name != IMAGE)

    def named(self, name: str, x: Symbol) -> Symbol:
        """The same value, which is called so in the graph."""
        self.names[x.name] = name
        return x

    def convolve(
        self, name: str, x: Symbol, features: int, window: int, stride: int, padding: int
    ) -> Symbol:
        weight = self.input(f"{name}.weight", (features, x.shape[1], window, window))
        bias = self.input(f"{name}.bias", (features,))
        made = ops.convolve(x, weight, (stride,) * 2, (padding,) * 2, bias=bias)
        return self.named(name, made)

    def linear(self, name: str, x: Symbol, features: int) -> Symbol:
        weight = self.input(f"{name}.weight", (x.shape[1], features))
        return self.named(name, ops.linear(x, weight, self.input(f"{name}.bias", (features,))))

    def activate(self, name: str, x: Symbol) -> Symbol:
        return self.named(name, ops.polynomial(x, **self.activation.attributes))

    def basic(self, name: str, x: Symbol, channels: int, stride: int) -> Symbol:
        """Two convolutions of 3 x 3."""
        y = self.convolve(f"{name}.conv1", x, channels, 3, stride, 1)
        y = self.activate(f"{name}.act1", y)
        y = self.convolve(f"{name}.conv2", y, channels, 3, 1, 1)
        return self._joined(name, x, y, stride, "act2")

    def bottleneck(self, name: str, x: Symbol, channels: int, stride: int) -> Symbol:
        """Convolutions of 1 x 1, 3 x 3 (with the stride) and 1 x 1."""
        y = self.convolve(f"{name}.conv1", x, channels, 1, 1, 0)
        y = self.activate(f"{name}.act1", y)
        y = self.convolve(f"{name}.conv2", y, channels, 3, stride, 1)
        y = self.activate(f"{name}.act2", y)
        y = self.convolve(f"{name}.conv3", y, 4 * channels, 1, 1, 0)
        return self._joined(name, x, y, stride, "act3")

    def _joined(self, name: str, x: Symbol, y: Symbol, stride: int, last: str) -> Symbol:
        """The block and what goes past it, through a convolution where the shape changes."""
        if x.shape != y.shape:
            x = self.convolve(f"{name}.downsample", x, y.shape[1], 1, stride, 0)
        return self.activate(f"{name}.{last}", self.named(f"{name}.add", y + x))

    def graph(self, output: Symbol) -> Graph:
        """The program, with the names of its layers."""

        def called(name: str) -> str:
            return self.names.get(name, name)

        applications = [
            Application(
                each.operator,
                tuple(map(called, each.operands)),
                tuple(map(called, each.results)),
                each.attributes,
            )
            for each in self.tracer.applications
        ]
        dtypes = {called(name): dtype for name, dtype in self.tracer.dtypes.items()}
        parameters = [v.name for v in self.tracer.inputs if v.name != IMAGE]
        return Graph(
            self.tracer.inputs,
            applications,
            [called(output.name)],
            dtypes=dtypes,
            parameters=parameters,
        )


def parameter_values(graph: Graph) -> list[Value]:
    """The inputs of a network but its image."""
    return [value for value in graph.inputs if value.name != IMAGE]


def parameters(graph: Graph, seed: int = 0) -> dict[str, NDArray[np.float64]]:
    """Random weights by name, with 1 / inputs as variance, and small biases.

    Half of He's variance: a polynomial does not vanish below zero, as relu does. The last
    convolution of a block is a fourth as large. So values stay in the range of the activation,
    however many blocks there are.
    """
    rng = np.random.default_rng(seed)
    found: dict[str, NDArray[np.float64]] = {}
    last = _last_in_block(graph)
    for value in parameter_values(graph):
        if len(value.shape) == 1:
            found[value.name] = rng.uniform(-0.05, 0.05, value.shape)
            continue
        inner = value.shape[0] if len(value.shape) == 2 else prod(value.shape[1:])
        size = (0.25 if value.name in last else 1.0) / sqrt(inner)
        found[value.name] = rng.normal(0, size, value.shape)
    return found


def _last_in_block(graph: Graph) -> set[str]:
    """The weights of the convolutions whose results go into a sum first."""
    makers = {each.results[0]: each for each in graph.applications}
    sums = [each for each in graph.applications if each.operator == "add"]
    return {makers[each.operands[0]].operands[1] for each in sums}


def forward(graph: Graph, arrays: Mapping[str, NDArray[np.float64]]) -> dict[str, Any]:
    """All values of a network that is not encrypted, by name."""
    names = [name for each in graph.applications for name in each.results]
    everything = Graph(graph.inputs, graph.applications, names)
    made = run(propagate(everything), arrays)
    return {**arrays, **{name: value.numpy() for name, value in zip(names, made)}}


def check_ranges(graph: Graph, values: Mapping[str, Any]) -> None:
    """Refuse values that an activation is not meant for, with the name of its layer."""
    for each in graph.applications:
        if each.operator == "polynomial":
            Activation.of(each.attributes).check(values[each.operands[0]], each.results[0])


def table(graph: Graph) -> str:
    """The layers with weights: name, operator, shape of the result, parameters."""
    lines = []
    for each in graph.applications:
        weights = [graph.values[name] for name in each.operands[1:] if "." in name]
        count = sum(prod(value.shape) for value in weights if value in graph.inputs)
        if count:
            shape = "x".join(map(str, graph.values[each.results[0]].shape[1:]))
            lines.append(f"{each.results[0]:24} {each.operator:12} {shape:>12} {count:>10,}")
    return "\n".join(lines)


def main() -> None:
    """Print the layers of ResNet-20, and the sizes of all."""
    print(table(build(RESNET20)))
    for architecture in NAMED.values():
        graph = build(architecture)
        count = sum(prod(value.shape) for value in parameter_values(graph))
        print(f"{architecture.name}: {len(graph.applications)} applications, {count:,} parameters")


if __name__ == "__main__":
    main()

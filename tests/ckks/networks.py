"""Random networks for ciphertexts, and what they make without any."""

import numpy as np
from hypothesis import strategies as st

from weft import propagate
from weft import run as run_plan
from weft.ckks import fit, square
from weft.lang import ops
from weft.lang.graph import Graph
from weft.lang.trace import Symbol, Tracer

ACTIVATIONS = (square(-4, 4), fit("relu", 2, -4, 4), fit("silu", 3, -4, 4), fit("gelu", 4, -4, 4))


class Drawn:
    """A network that is being drawn: values of images and vectors, layer after layer."""

    def __init__(self, draw):
        self.draw, self.tracer = draw, Tracer()
        self.arrays = {}
        self.rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))

    def number(self, low, high):
        return self.draw(st.integers(low, high))

    def input(self, name, shape, size=0.3):
        self.arrays[name] = self.rng.uniform(-size, size, shape)
        return self.tracer.input(name, shape, "float64")

    def weight(self, *shape):
        return self.input(f"w{len(self.arrays)}", shape)

    def image(self, x: Symbol) -> Symbol:  # noqa: PLR0911 - a case for each layer
        """One more layer on an image."""
        _, channels, rows, columns = x.shape
        match self.number(0, 8):
            case 0 | 1 | 2:
                kernel, stride = self.number(1, 3), self.number(1, 2)
                groups = self.draw(st.sampled_from([1, channels]))
                made = groups * self.number(1, 2) if groups > 1 else self.number(1, 5)
                if min(rows, columns) < kernel:
                    return x
                w = self.weight(made, channels // groups, kernel, kernel)
                bias = self.weight(made) if self.number(0, 1) else None
                return ops.convolve(
                    x, w, (stride,) * 2, (self.number(0, kernel - 1),) * 2, groups=groups, bias=bias
                )
            case 3:
                y = ops.convolve(x, self.weight(channels, channels, 3, 3), (1, 1), (1, 1))
                return y + x if self.number(0, 1) else y - x
            case 4:
                return ops.polynomial(x, **self.draw(st.sampled_from(ACTIVATIONS)).attributes)
            case 5:
                return x * x if self.number(0, 1) else x * 0.5 - self.weight(1, channels, 1, 1)
            case 6 if min(rows, columns) > 2:
                return ops.avg_pool(x, window=(2, 2), strides=(self.number(1, 2),) * 2)
            case 7:
                y = ops.convolve(x, self.weight(self.number(1, 3), channels, 1, 1))
                return ops.concatenate([x, y], 1)
            case _:
                return -x if self.number(0, 1) else x.transpose((0, 1, 3, 2))

    def network(self) -> Graph:
        shape = 1, self.number(1, 4), self.number(2, 9), self.number(2, 9)
        x = self.input("x", shape, size=1)
        for _ in range(self.number(1, 4)):
            x = self.image(x)
        if self.number(0, 1):
            x = x.mean((2, 3)) if self.number(0, 1) else x.reshape(1, int(np.prod(x.shape)))
            x = ops.linear(x, self.weight(x.shape[1], self.number(1, 12)))
        return self.tracer.graph([x])


@st.composite
def networks(draw):
    """A graph, and an array for each of its inputs, of which `x` is to be encrypted."""
    drawn = Drawn(draw)
    graph = drawn.network()
    return graph, drawn.arrays


def plainly(graph, arrays):
    """The outputs of a graph without encryption."""
    (made,) = run_plan(propagate(graph), arrays)
    return made.numpy()

"""Random programs of a few operators on a 2 x 2 mesh, with random shardings written on them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.int32]
Shape = tuple[int, ...]

MESH = 'sdy.mesh @m = <["x"=2, "y"=2]>'
SIZES = (2, 3, 4, 5, 6, 8, 8, 12)
LARGEST = 1024
"""The most elements of a value."""


class Program:
    """A program as StableHLO, and what NumPy says of it.

    >>> program = Program(seed=7)
    >>> 2 <= program.count <= 5, program.text.splitlines()[0]
    (True, 'sdy.mesh @m = <["x"=2, "y"=2]>')
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.shapes: list[Shape] = []
        self.inputs: list[int] = []
        self.used: set[int] = set()
        self.lines: list[str] = []
        self.steps: list[tuple[list[int], Callable[..., Array]]] = []
        self.sizes = self.rng.sample(SIZES, 3)
        self._input(self._shape())
        wanted = self.rng.randint(2, 5)
        kinds = (self._dot, self._dot, self._pointwise, self._binary, self._reduce, self._transpose)
        while self.count < wanted:
            self.rng.choice((*kinds, self._binary, self._broadcast))()
        made = [n for n in range(len(self.shapes)) if n not in self.inputs]
        self.outputs = [n for n in made if n not in self.used or self.rng.random() < 0.1]
        self.text = "\n".join(self._lines())

    @property
    def count(self) -> int:
        """How many operators there are."""
        return len(self.steps)

    def arrays(self) -> list[Array]:
        """Numbers for the inputs."""
        numbers = np.random.default_rng(self.rng.randrange(1 << 30))
        return [numbers.integers(-3, 4, self.shapes[n]).astype(np.int32) for n in self.inputs]

    def run(self, arrays: Sequence[Array]) -> list[Array]:
        """The outputs, as NumPy computes them."""
        values = dict(zip(self.inputs, arrays))
        made = (n for n in range(len(self.shapes)) if n not in self.inputs)
        for number, (operands, function) in zip(made, self.steps):
            values[number] = np.asarray(function(*(values[n] for n in operands)), np.int32)
        return [values[n] for n in self.outputs]

    # -- values

    def _shape(self) -> Shape:
        return tuple(self.rng.choice(self.sizes) for _ in range(self.rng.randint(1, 3)))

    def _input(self, shape: Shape) -> int:
        self.shapes.append(shape)
        self.inputs.append(len(self.shapes) - 1)
        return len(self.shapes) - 1

    def _any(self, least: int = 0) -> int:
        """Some value; what was made last is often used next."""
        found = [n for n, shape in enumerate(self.shapes) if len(shape) >= least]
        if not found:
            return self._input(tuple(self.rng.choice(self.sizes) for _ in range(least)))
        return self.rng.choice(found[-2:] if self.rng.random() < 0.5 else found)

    def _like(self, shape: Shape) -> int:
        """Some value of a shape, or a new input."""
        found = [n for n, other in enumerate(self.shapes) if other == shape]
        return self.rng.choice(found) if found and self.rng.random() < 0.5 else self._input(shape)

    # -- operators

    def _pointwise(self) -> None:
        name, function = self.rng.choice([("negate", np.negative), ("abs", np.abs)])
        a = self._any()
        self._emit(name, [a], self.shapes[a], function)

    def _binary(self) -> None:
        both: list[tuple[str, Callable[..., Array]]] = [
            ("add", np.add),
            ("multiply", np.multiply),
            ("maximum", np.maximum),
        ]
        name, function = self.rng.choice(both)
        a = self._any()
        self._emit(name, [a, self._like(self.shapes[a])], self.shapes[a], function)

    def _transpose(self) -> None:
        a = self._any(2)
        order = list(range(len(self.shapes[a])))
        self.rng.shuffle(order)
        shape = tuple(self.shapes[a][d] for d in order)
        said = f"permutation = array<i64: {', '.join(map(str, order))}>"
        self._emit("transpose", [a], shape, lambda x: np.transpose(x, order), said)

    def _broadcast(self) -> None:
        a = self._any()
        rank = len(self.shapes[a])
        if rank == 3:
            return
        at = self.rng.randint(0, rank)
        shape = (*self.shapes[a][:at], self.rng.choice(self.sizes), *self.shapes[a][at:])
        dims = [d for d in range(rank + 1) if d != at]
        said = f"broadcast_dimensions = array<i64{': ' * bool(dims)}{', '.join(map(str, dims))}>"
        self._emit(
            "broadcast_in_dim",
            [a],
            shape,
            lambda x: np.broadcast_to(np.expand_dims(x, at), shape),
            said,
        )

    def _reduce(self) -> None:
        a = self._any(1)
        rank = len(self.shapes[a])
        dims = sorted(self.rng.sample(range(rank), self.rng.randint(1, min(2, rank))))
        shape = tuple(n for d, n in enumerate(self.shapes[a]) if d not in dims)
        both: list[tuple[str, str, Callable[..., Array]]] = [
            ("add", "0", np.sum),
            ("maximum", "-2147483648", np.max),
        ]
        name, start, function = self.rng.choice(both)
        zero = f"%z{len(self.shapes)}"
        self.lines.append(f"  {zero} = stablehlo.constant dense<{start}> : tensor<i32>")
        body = (
            "({\n  ^bb0(%l: tensor<i32>, %r: tensor<i32>):\n"
            f"    %s = stablehlo.{name} %l, %r : tensor<i32>\n"
            "    stablehlo.return %s : tensor<i32>\n  })"
        )
        said = f"dimensions = array<i64: {', '.join(map(str, dims))}>"
        self._emit(
            "reduce", [a], shape, lambda x: function(x, axis=tuple(dims)), said, body, [zero]
        )

    def _dot(self) -> None:
        a = self._any(1)
        mine = self.shapes[a]
        along = self.rng.randrange(len(mine))
        fit = [n for n, s in enumerate(self.shapes) if n != a and mine[along] in s and len(s) < 3]
        other = self.rng.choice(self.sizes)
        if fit and self.rng.random() < 0.4:
            b = self.rng.choice(fit)
        else:
            b = self._input(self.rng.choice([(mine[along], other), (other, mine[along])]))
        theirs = self.shapes[b]
        across = theirs.index(mine[along])
        shape = tuple(n for d, n in enumerate(mine) if d != along)
        shape += tuple(n for d, n in enumerate(theirs) if d != across)
        if len(shape) > 3:
            return
        said = (
            "dot_dimension_numbers = #stablehlo.dot<"
            f"lhs_contracting_dimensions = [{along}], rhs_contracting_dimensions = [{across}]>"
        )
        self._emit(
            "dot_general", [a, b], shape, lambda x, y: np.tensordot(x, y, ([along], [across])), said
        )

    def _emit(
        self,
        name: str,
        operands: list[int],
        shape: Shape,
        function: Callable[..., Array],
        said: str = "",
        body: str = "",
        more: Sequence[str] = (),
    ) -> None:
        """Add an operator, unless it makes too much."""
        if prod(shape) > LARGEST:
            return
        attributes = [said] if said else []
        if self.rng.random() < 0.25:
            text = self._sharding(shape)
            attributes.append(f"sdy.sharding = #sdy.sharding_per_value<[{text}]>")
        names = ", ".join([*(f"%v{n}" for n in operands), *more])
        kinds = ", ".join(
            [*(_kind(self.shapes[n]) for n in operands), *["tensor<i32>"] * len(more)]
        )
        self.lines.append(
            f'  %v{len(self.shapes)} = "stablehlo.{name}"({names}) {body} '
            f"{{{', '.join(attributes)}}} : ({kinds}) -> {_kind(shape)}"
        )
        self.used.update(operands)
        self.shapes.append(shape)
        self.steps.append((operands, function))

    # -- text

    def _sharding(self, shape: Shape) -> str:
        """Some sharding: each axis cuts a dimension, or none; dimensions are open or closed."""
        axes: list[list[str]] = [[] for _ in shape]
        kept = []
        for axis in self.rng.sample(['"x"', '"y"'], 2):
            chance = self.rng.random()
            if shape and chance < 0.6:
                self.rng.choice(axes).append(axis)
            elif chance < 0.7:
                kept.append(axis)
        dims = [
            "{" + ", ".join([*of_dim, *["?"] * (self.rng.random() < 0.5)]) + "}" for of_dim in axes
        ]
        replicated = f", replicated={{{', '.join(sorted(kept))}}}" if kept else ""
        return f"<@m, [{', '.join(dims)}]{replicated}>"

    def _said(self, number: int, chance: float) -> str:
        if self.rng.random() >= chance:
            return ""
        return f" {{sdy.sharding = #sdy.sharding{self._sharding(self.shapes[number])}}}"

    def _lines(self) -> Iterator[str]:
        heads = [f"%v{n}: {_kind(self.shapes[n])}{self._said(n, 0.7)}" for n in self.inputs]
        kinds = [_kind(self.shapes[n]) for n in self.outputs]
        results = [f"{kind}{self._said(n, 0.4)}" for n, kind in zip(self.outputs, kinds)]
        names = ", ".join(f"%v{n}" for n in self.outputs)
        yield MESH
        yield f"func.func @main({', '.join(heads)}) -> ({', '.join(results)}) {{"
        yield from self.lines
        yield f"  return {names} : {', '.join(kinds)}"
        yield "}"


def _kind(shape: Shape) -> str:
    return f"tensor<{''.join(f'{n}x' for n in shape)}i32>"

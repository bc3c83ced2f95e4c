"""Random StableHLO programs over many operators, with random shardings, as text."""

import random
from math import prod

from tests.plan.programs import random_sharding, sharding_text

SIZES = [1, 2, 3, 4, 6, 8, 12, 16]


class Writer:
    """Writes a program line by line; every value is used or returned."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.mesh = [self.rng.choice([2, 2, 3, 4, 8]) for _ in range(self.rng.randint(1, 3))]
        self.shapes: list[tuple[int, ...]] = []
        self.lines: list[str] = []
        self.used: set[int] = set()
        self.scalars: set[int] = set()
        self.inputs = 0

    def text(self, operators: int, priorities: bool) -> str:
        rng = self.rng
        self.inputs = rng.randint(1, 3)
        for _ in range(self.inputs):
            self.shapes.append(tuple(rng.choice(SIZES) for _ in range(rng.randint(1, 4))))
        heads = [
            f"%v{n}: {self.kind(n)}{self.sharding(n, 0.7, priorities)}" for n in range(self.inputs)
        ]
        while len(self.lines) < operators:
            getattr(self, rng.choice(OPERATORS))(priorities)
        outputs = [n for n in range(self.inputs, len(self.shapes)) if n not in self.used]
        kinds = [f"{self.kind(n)}{self.sharding(n, 0.3, False)}" for n in outputs]
        axes = ", ".join(f'"a{axis}"={size}' for axis, size in enumerate(self.mesh))
        names = ", ".join(f"%v{n}" for n in outputs)
        return "\n".join(
            [
                f"sdy.mesh @m = <[{axes}]>",
                f"func.func @main({', '.join(heads)}) -> ({', '.join(kinds)}) {{",
                *self.lines,
                f"  return {names} : {', '.join(map(self.kind, outputs))}",
                "}",
            ]
        )

    def kind(self, n: int) -> str:
        return "tensor<" + "".join(f"{size}x" for size in self.shapes[n]) + "f32>"

    def sharding(self, n: int, chance: float, priorities: bool) -> str:
        if self.rng.random() >= chance:
            return ""
        return f" {{sdy.sharding = #sdy.sharding{self._text(n, priorities)}}}"

    def _text(self, n: int, priorities: bool) -> str:
        found = random_sharding(self.rng, len(self.shapes[n]), self.mesh)
        levels = [
            self.rng.choice([0, 0, 1, 2]) if priorities and (axes or opened) else 0
            for axes, opened in zip(found.axes, found.is_open)
        ]
        return sharding_text(found, self.mesh, levels)

    def any(self, least: int = 0) -> int:
        return self.rng.choice([n for n, s in self.arrays() if len(s) >= least])

    def arrays(self) -> list[tuple[int, tuple[int, ...]]]:
        """The values but for the constants that some operators need."""
        return [(n, s) for n, s in enumerate(self.shapes) if n not in self.scalars]

    def emit(
        self, operands: list[int], shape: tuple[int, ...], body: str, priorities: bool
    ) -> None:
        """Add an operation; `body` has {} for attributes and {kinds} for the types of operands."""
        n = len(self.shapes)
        self.shapes.append(shape)
        self.used.update(operands)
        extra = ""
        if self.rng.random() < 0.2:
            text = self._text(n, priorities)
            extra = f"{{sdy.sharding = #sdy.sharding_per_value<[{text}]>}} "
        self.lines.append(f"  %v{n} = " + body.replace("@@", extra).replace("@kind", self.kind(n)))

    # One method for each family of operators.

    def pointwise(self, p: bool) -> None:
        a = self.any()
        same = [n for n, shape in self.arrays() if shape == self.shapes[a]]
        b = self.rng.choice(same)
        name = self.rng.choice(["add", "multiply", "subtract", "maximum"])
        self.emit([a, b], self.shapes[a], f"stablehlo.{name} %v{a}, %v{b} @@: @kind", p)

    def unary(self, p: bool) -> None:
        a = self.any()
        name = self.rng.choice(["tanh", "exponential", "negate", "sqrt", "logistic"])
        self.emit([a], self.shapes[a], f"stablehlo.{name} %v{a} @@: @kind", p)

    def dot(self, p: bool) -> None:
        a, b = self.any(1), self.any(1)
        pairs = [
            (i, j)
            for i, m in enumerate(self.shapes[a])
            for j, n in enumerate(self.shapes[b])
            if m == n
        ]
        self.rng.shuffle(pairs)
        taken: list[tuple[int, int]] = []
        for i, j in pairs:
            if all(i != x and j != y for x, y in taken) and len(taken) < 2:
                taken.append((i, j))
        split = self.rng.randint(0, len(taken))
        batch, contract = taken[:split], taken[split:]
        rest_a = [n for i, n in enumerate(self.shapes[a]) if i not in [x for x, _ in taken]]
        rest_b = [n for j, n in enumerate(self.shapes[b]) if j not in [y for _, y in taken]]
        shape = (*(self.shapes[a][i] for i, _ in batch), *rest_a, *rest_b)
        if len(shape) > 5 or prod(shape) > 10**6:
            return
        dims = ""
        if batch:
            dims += f", batching_dims = {[i for i, _ in batch]} x {[j for _, j in batch]}"
        dims += f", contracting_dims = {[i for i, _ in contract]} x {[j for _, j in contract]}"
        self.emit(
            [a, b],
            shape,
            f"stablehlo.dot_general %v{a}, %v{b}{dims} @@: "
            f"({self.kind(a)}, {self.kind(b)}) -> @kind",
            p,
        )

    def transpose(self, p: bool) -> None:
        a = self.any(1)
        order = list(range(len(self.shapes[a])))
        self.rng.shuffle(order)
        shape = tuple(self.shapes[a][axis] for axis in order)
        body = f"stablehlo.transpose %v{a}, dims = {order} @@: ({self.kind(a)}) -> @kind"
        self.emit([a], shape, body, p)

    def reshape(self, p: bool) -> None:
        a = self.any(1)
        left, shape = prod(self.shapes[a]), list[int]()
        while left > 1 and len(shape) < 3:
            part = self.rng.choice([n for n in range(2, left + 1) if left % n == 0])
            shape.append(part)
            left //= part
        shape = [*shape, left] if left > 1 else shape
        if self.rng.random() < 0.3:
            shape.insert(self.rng.randint(0, len(shape)), 1)
        body = f"stablehlo.reshape %v{a} @@: ({self.kind(a)}) -> @kind"
        self.emit([a], tuple(shape), body, p)

    def broadcast(self, p: bool) -> None:
        a = self.any()
        rank = len(self.shapes[a]) + self.rng.randint(0, 2)
        if rank > 5:
            return
        where = sorted(self.rng.sample(range(rank), len(self.shapes[a])))
        shape = [self.rng.choice(SIZES) for _ in range(rank)]
        for axis, size in zip(where, self.shapes[a]):
            shape[axis] = size if size != 1 or self.rng.random() < 0.5 else self.rng.choice(SIZES)
        body = f"stablehlo.broadcast_in_dim %v{a}, dims = {where} @@: ({self.kind(a)}) -> @kind"
        self.emit([a], tuple(shape), body, p)

    def reduce(self, p: bool) -> None:
        a = self.any(1)
        rank = len(self.shapes[a])
        dims = sorted(self.rng.sample(range(rank), self.rng.randint(1, rank)))
        shape = tuple(n for d, n in enumerate(self.shapes[a]) if d not in dims)
        init = self._scalar("f32", "0.0")
        body = (
            f"stablehlo.reduce(%v{a} init: %v{init}) applies stablehlo.add "
            f"across dimensions = {dims} @@: ({self.kind(a)}, tensor<f32>) -> @kind"
        )
        self.emit([a, init], shape, body, p)

    def concatenate(self, p: bool) -> None:
        a = self.any(1)
        dim = self.rng.randrange(len(self.shapes[a]))
        shape = list(self.shapes[a])
        shape[dim] *= 2
        body = (
            f"stablehlo.concatenate %v{a}, %v{a}, dim = {dim} @@: "
            f"({self.kind(a)}, {self.kind(a)}) -> @kind"
        )
        self.emit([a], tuple(shape), body, p)

    def slice(self, p: bool) -> None:
        a = self.any(1)
        ranges, shape = [], []
        for size in self.shapes[a]:
            start = self.rng.randrange(size) if self.rng.random() < 0.4 else 0
            stop = self.rng.randint(start + 1, size) if self.rng.random() < 0.4 else size
            ranges.append(f"{start}:{stop}")
            shape.append(stop - start)
        body = f"stablehlo.slice %v{a} [{', '.join(ranges)}] @@: ({self.kind(a)}) -> @kind"
        self.emit([a], tuple(shape), body, p)

    def reverse(self, p: bool) -> None:
        a = self.any(1)
        dim = self.rng.randrange(len(self.shapes[a]))
        body = f"stablehlo.reverse %v{a}, dims = [{dim}] @@: @kind"
        self.emit([a], self.shapes[a], body, p)

    def _scalar(self, kind: str, value: str) -> int:
        n = len(self.shapes)
        self.shapes.append(())
        self.scalars.add(n)
        self.lines.append(f"  %v{n} = stablehlo.constant dense<{value}> : tensor<{kind}>")
        return n

    def select(self, p: bool) -> None:
        a = self.any()
        same = [n for n, shape in self.arrays() if shape == self.shapes[a]]
        b, flag = self.rng.choice(same), self._scalar("i1", "true")
        body = f"stablehlo.select %v{flag}, %v{a}, %v{b} @@: tensor<i1>, @kind"
        self.emit([a, b, flag], self.shapes[a], body, p)

    def clamp(self, p: bool) -> None:
        a = self.any()
        low = self._scalar("f32", "0.0")
        body = (
            f"stablehlo.clamp %v{low}, %v{a}, %v{low} @@: "
            f"(tensor<f32>, {self.kind(a)}, tensor<f32>) -> @kind"
        )
        self.emit([a, low], self.shapes[a], body, p)

    def dynamic_slice(self, p: bool) -> None:
        a = self.any(1)
        at = self._scalar("i32", "0")
        shape = tuple(
            n if self.rng.random() < 0.6 else self.rng.randint(1, n) for n in self.shapes[a]
        )
        starts = [f"%v{at}"] * len(shape)
        kinds = [self.kind(a), *["tensor<i32>"] * len(shape)]
        body = (
            f"stablehlo.dynamic_slice %v{a}, {', '.join(starts)}, sizes = {list(shape)} @@: "
            f"({', '.join(kinds)}) -> @kind"
        )
        self.emit([a, at], shape, body, p)

    def dynamic_update_slice(self, p: bool) -> None:
        a = self.any(1)
        fit = [
            n
            for n, shape in self.arrays()
            if len(shape) == len(self.shapes[a])
            and all(x <= y for x, y in zip(shape, self.shapes[a]))
        ]
        b, at = self.rng.choice(fit), self._scalar("i32", "0")
        rank = len(self.shapes[a])
        starts = ", ".join([f"%v{at}"] * rank)
        kinds = ", ".join([self.kind(a), self.kind(b), *["tensor<i32>"] * rank])
        body = f"stablehlo.dynamic_update_slice %v{a}, %v{b}, {starts} @@: ({kinds}) -> @kind"
        self.emit([a, b, at], self.shapes[a], body, p)

    def pad(self, p: bool) -> None:
        a = self.any(1)
        value = self._scalar("f32", "0.0")
        low = [self.rng.choice([0, 0, 1, 2]) for _ in self.shapes[a]]
        high = [self.rng.choice([0, 0, 1, 2]) for _ in self.shapes[a]]
        inner = [0 for _ in self.shapes[a]]
        shape = tuple(n + x + y for n, x, y in zip(self.shapes[a], low, high))
        body = (
            f"stablehlo.pad %v{a}, %v{value}, low = {low}, high = {high}, interior = {inner} @@: "
            f"({self.kind(a)}, tensor<f32>) -> @kind"
        )
        self.emit([a, value], shape, body, p)

    def cholesky(self, p: bool) -> None:
        square = [n for n, s in self.arrays() if len(s) > 1 and s[-1] == s[-2]]
        if square:
            a = self.rng.choice(square)
            body = f"stablehlo.cholesky %v{a}, lower = true @@: @kind"
            self.emit([a], self.shapes[a], body, p)


OPERATORS = (
    *("select", "clamp", "dynamic_slice", "dynamic_update_slice", "pad", "cholesky"),
    *("pointwise", "pointwise", "unary", "unary", "dot", "dot", "transpose", "reshape", "reshape"),
    *("broadcast", "reduce", "concatenate", "slice", "reverse"),
)

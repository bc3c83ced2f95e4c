"""Writes random StableHLO programs with random shardings, as text."""

import random
from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

from tests.plan.programs import random_sharding, sharding_text

SIZES = [1, 2, 3, 4, 6, 8, 12, 16]
FLOATS = ("f32", "bf16")
INTEGERS = ("i32", "ui8")
COMPLEX = "complex<f32>"
ORDERED = (*FLOATS, *INTEGERS, "i1")
ELEMENTS = (*ORDERED, COMPLEX)
WEIGHTS = (8, 1, 2, 1, 1, 1)
LARGEST = 1 << 20
"""The most elements that a value has."""


class Kind(NamedTuple):
    """The type of a value."""

    shape: tuple[int, ...]
    element: str = "f32"

    def __str__(self) -> str:
        return f"tensor<{''.join(f'{size}x' for size in self.shape)}{self.element}>"


class Writer:
    """Writes a program operation by operation; every value is used or returned."""

    def __init__(self, seed: int, priorities: bool = False) -> None:
        self.rng = random.Random(seed)
        self.priorities = priorities
        self.mesh = [
            self.rng.choice([1, 2, 2, 3, 4, 6, 8, 12]) for _ in range(self.rng.randint(1, 3))
        ]
        self.kinds: list[Kind] = []
        self.arguments: list[int] = []
        self.lines: list[str] = []
        self.used: set[int] = set()
        self.scalars: set[int] = set()
        self.operations = 0

    def text(self, operations: int, families: Sequence[Callable[["Writer"], None]]) -> str:
        """A program of so many operations, but for constants that some of them need."""
        rng = self.rng
        for _ in range(rng.randint(1, 3)):
            self.argument(self.shape(), rng.choices(ELEMENTS, WEIGHTS)[0])
        while self.operations < operations:
            rng.choice(families)(self)
        return self._module()

    def _module(self) -> str:
        rng = self.rng
        dead = tuple(f"  %v{n} = " for n in self.scalars - self.used)
        lines = [line for line in self.lines if not line.startswith(dead)]
        made = [n for n in range(len(self.kinds)) if n not in self.scalars]
        idle = [n for n in made if n not in self.used and n not in self.arguments]
        outputs = idle + [n for n in made if rng.random() < 0.06]
        heads = [f"%v{n}: {self.kinds[n]}{self._annotation(n, 0.6)}" for n in self.arguments]
        kinds = [f"{self.kinds[n]}{self._annotation(n, 0.3)}" for n in outputs]
        axes = ", ".join(f'"a{axis}"={size}' for axis, size in enumerate(self.mesh))
        names, types = (
            ", ".join(f"%v{n}" for n in outputs),
            ", ".join(str(self.kinds[n]) for n in outputs),
        )
        return "\n".join(
            [
                f"sdy.mesh @m = <[{axes}]>",
                f"func.func @main({', '.join(heads)}) -> ({', '.join(kinds)}) {{",
                *lines,
                f"  return {names} : {types}",
                "}",
            ]
        )

    def _annotation(self, n: int, chance: float) -> str:
        if self.rng.random() >= chance:
            return ""
        return f" {{sdy.sharding = #sdy.sharding{self.sharding(self.kinds[n])}}}"

    def sharding(self, kind: Kind) -> str:
        """A sharding for a value of that type, with priorities if the program has them."""
        found = random_sharding(self.rng, len(kind.shape), self.mesh)
        levels = [
            self.rng.choice([0, 0, 1, 2]) if self.priorities and (axes or opened) else 0
            for axes, opened in zip(found.axes, found.is_open)
        ]
        return sharding_text(found, self.mesh, levels)

    def shape(self, least: int = 0, most: int = 4) -> tuple[int, ...]:
        rank = self.rng.randint(max(least, min(1, most)), most)
        return tuple(self.rng.choice(SIZES) for _ in range(rank))

    def argument(self, shape: tuple[int, ...], element: str) -> int:
        """A new argument of the program."""
        self.kinds.append(Kind(shape, element))
        self.arguments.append(len(self.kinds) - 1)
        return len(self.kinds) - 1

    def any(self, least: int = 0, most: int = 5, elements: Sequence[str] = ELEMENTS) -> int:
        """Some value of that rank and those elements."""
        found = [
            n
            for n, kind in enumerate(self.kinds)
            if least <= len(kind.shape) <= most
            and kind.element in elements
            and n not in self.scalars
        ]
        if found:  # what was made last is often used next
            return self.rng.choice(found[-3:] if self.rng.random() < 0.4 else found)
        element = elements[0] if self.rng.random() < 0.5 else self.rng.choice(elements)
        return self.argument(self.shape(least, min(most, 4)), element)

    def need(self, shape: Sequence[int], element: str) -> int:
        """Some value of just that type."""
        wanted = Kind(tuple(shape), element)
        found = [n for n, kind in enumerate(self.kinds) if kind == wanted and n not in self.scalars]
        if found and self.rng.random() < 0.8:
            return self.rng.choice(found)
        return self.argument(*wanted)

    def like(self, n: int) -> int:
        """Some value of the type of another."""
        return self.need(*self.kinds[n])

    def scalar(self, element: str) -> int:
        """A constant; one that is there already, or a new one."""
        found = [n for n in self.scalars if self.kinds[n].element == element]
        if found and self.rng.random() < 0.3:
            return self.rng.choice(sorted(found))
        n = len(self.kinds)
        self.kinds.append(Kind((), element))
        self.scalars.add(n)
        value = "true" if element == "i1" else "0" if element[0] in "iu" else "0.0"
        value = "(0.0, 0.0)" if element == COMPLEX else value
        self.lines.append(f"  %v{n} = stablehlo.constant dense<{value}> : tensor<{element}>")
        return n

    def emit(
        self,
        name: str,
        operands: Sequence[int],
        results: Sequence[Kind],
        attributes: Sequence[str] = (),
        regions: Sequence[str] = (),
    ) -> None:
        """Add an operation, unless it makes too much."""
        if any(prod(kind.shape) > LARGEST or len(kind.shape) > 6 for kind in results):
            return
        said = list(attributes)
        if not name.startswith("sdy.") and self.rng.random() < 0.2:
            per_value = ", ".join(map(self.sharding, results))
            said.append(f"sdy.sharding = #sdy.sharding_per_value<[{per_value}]>")
        first = len(self.kinds)
        self.kinds.extend(results)
        self.used.update(operands)
        self.operations += 1
        made = ", ".join(f"%v{first + n}" for n in range(len(results)))
        names = ", ".join(f"%v{n}" for n in operands)
        types = ", ".join(str(self.kinds[n]) for n in operands)
        inside = f" ({', '.join(regions)})" if regions else ""
        named = name if "." in name else f"stablehlo.{name}"
        self.lines.append(
            f'  {made} = "{named}"({names}){inside} {{{", ".join(said)}}} : '
            f"({types}) -> ({', '.join(map(str, results))})"
        )


def integers(name: str, values: Sequence[int]) -> str:
    """An attribute that is a list of integers."""
    return f"{name} = array<i64{': ' * bool(values)}{', '.join(map(str, values))}>"


def pairs(name: str, values: Sequence[int]) -> str:
    """An attribute that is a list of pairs."""
    text = ", ".join(f"[{a}, {b}]" for a, b in zip(values[::2], values[1::2]))
    return f"{name} = dense<[{text}]> : tensor<{len(values) // 2}x2xi64>"


def region(elements: Sequence[str], operation: str) -> str:
    """A region that combines each array by an operation on two numbers, or gives one of them back.

    The first half of the arguments are what is there already, `left`; the others come in, `right`.
    """
    count, kinds = len(elements), [f"tensor<{element}>" for element in elements]
    arguments = ", ".join(f"%b{n}: {kinds[n % count]}" for n in range(2 * count))
    made, body = [f"%b{n + count * (operation == 'right')}" for n in range(count)], ""
    if operation not in ("left", "right"):
        made = [f"%s{n}" for n in range(count)]
        body = "".join(
            f"    %s{n} = stablehlo.{operation} %b{n}, %b{n + count} : {kinds[n]}\n"
            for n in range(count)
        )
    return (
        f"{{\n  ^bb0({arguments}):\n{body}"
        f"    stablehlo.return {', '.join(made)} : {', '.join(kinds)}\n  }}"
    )


def monoid(rng: random.Random, elements: Sequence[str]) -> str:
    """An operation for a region on such elements, most of them monoids."""
    choices = ["add", "add", "multiply", "maximum", "minimum", "left", "right"]
    if not {COMPLEX} & set(elements):
        choices += ["subtract"] * ("i1" not in elements)
    if all(element in (*INTEGERS, "i1") for element in elements):
        choices += ["and", "or", "xor"]
    return rng.choice(choices)

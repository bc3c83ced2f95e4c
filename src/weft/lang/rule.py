"""`FactorRule`: what propagation needs to know of a signature, and nothing else.

The factors are the index dimensions. A dimension of a tensor that names none, or none that the
others share, gets a factor of its own, so that its axes are seen where they would collide.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Literal, NamedTuple, TypeAlias

from weft.lang.notation import Row
from weft.lang.signature import Signature

Kind: TypeAlias = Literal["parallel", "reduced", "whole", "permuted"]
TensorFactors: TypeAlias = tuple[tuple[int, ...], ...]
"""For each dimension of a tensor its factors, major to minor."""


class FactorRule(NamedTuple):
    """How the dimensions of operands and results hang together.

    >>> print(factor_rule(Signature.of("m k, k n -> m n  sum: k", [(8, 16), (16, 32)])))
    ([m, k], [k, n]) -> ([m, n]) {m=8, n=32, k=16} reduced={k}
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    kinds: tuple[Kind, ...]
    operands: tuple[TensorFactors, ...]
    results: tuple[TensorFactors, ...]

    def __str__(self) -> str:
        def tensors(all_of_them: tuple[TensorFactors, ...]) -> str:
            return ", ".join(
                "[" + ", ".join("".join(self.names[f] for f in dim) for dim in tensor) + "]"
                for tensor in all_of_them
            )

        sizes = ", ".join(f"{name}={size}" for name, size in zip(self.names, self.sizes))
        text = f"({tensors(self.operands)}) -> ({tensors(self.results)}) {{{sizes}}}"
        for kind in ("reduced", "whole", "permuted"):
            found = [name for name, k in zip(self.names, self.kinds) if k == kind]
            text += f" {kind}={{{', '.join(found)}}}" * bool(found)
        return text


@lru_cache(maxsize=65536)
def factor_rule(signature: Signature) -> FactorRule:
    """The rule of a signature, derived from its line."""
    return _Builder(signature).rule()


class _Builder:
    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.names = list(signature.sizes)
        self.sizes = list(signature.sizes.values())
        self.permuted: set[str] = set()

    def rule(self) -> FactorRule:
        line, shapes = self.signature.notation, self.signature
        operands = tuple(map(self._tensor, line.operands, shapes.operand_shapes))
        results = tuple(map(self._tensor, line.results, shapes.result_shapes))
        kinds = tuple(map(self._kind, self.names))
        return FactorRule(tuple(self.names), tuple(self.sizes), kinds, operands, results)

    def _kind(self, name: str) -> Kind:
        line = self.signature.notation
        if name in line.reduced:
            return "reduced"
        if name in line.whole or name not in self.signature.sizes:
            return "whole"
        return "permuted" if name in self.permuted else "parallel"

    def _tensor(self, rows: tuple[Row, ...], shape: tuple[int, ...]) -> TensorFactors:
        return tuple(map(self._dim, rows, shape))

    def _dim(self, row: Row, size: int) -> tuple[int, ...]:
        if row.plain is not None and self.signature.sizes[row.plain] == size:
            return (self.names.index(row.plain),)
        radix = self._mixed_radix(row, size)
        if radix:
            return radix
        return self._affine(row, size) or (self._own(size),)

    def _own(self, size: int) -> int:
        """A factor that no other dimension shares."""
        self.names.append(f"_{len(self.names) - len(self.signature.sizes)}")
        self.sizes.append(size)
        return len(self.names) - 1

    def _mixed_radix(self, row: Row, size: int) -> tuple[int, ...]:
        """The digits, if the row spells the dimension as a number in mixed radix."""
        sizes = self.signature.sizes
        digits = sorted(row.terms, key=lambda term: -term[1])
        expected = [prod(sizes[d] for d, _ in digits[n + 1 :]) for n in range(len(digits))]
        whole = row.offset == 0 and row.window == 1 and prod(sizes[d] for d in row.dims) == size
        if not digits or not whole or [a for _, a in digits] != expected:
            return ()
        return tuple(self.names.index(name) for name, _ in digits)

    def _affine(self, row: Row, size: int) -> tuple[int, ...]:
        """The index dimensions that move along this one, the largest first, while there is room."""
        if len(row.dims) == 1:
            factor = self.names.index(row.dims[0])
            self.sizes[factor] = size if row.window == 1 else self.sizes[factor]
            self.permuted.add(row.dims[0])
            return (factor,)
        found = []
        for name in sorted(row.dims, key=lambda name: -self.signature.sizes[name]):
            room = min(size, self.signature.sizes[name])
            if room > 1:
                found.append(self.names.index(name))
                self.sizes[found[-1]] = room
                size //= room
                self.permuted.add(name)
        return tuple(found)

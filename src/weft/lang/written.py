"""A factor rule that an author wrote on an application, in place of the one that its line gives."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from weft.errors import WeftError
from weft.lang.rule import FactorRule, Kind, TensorFactors
from weft.lang.signature import Signature
from weft.text.rule import RuleText, read_rule
from weft.values import Point

ATTRIBUTE = "sdy.sharding_rule"
"""The attribute of an application under which a rule may stand, as text."""

_WORDS: dict[str, Kind] = {
    "reduction": "reduced",
    "need_replication": "whole",
    "permutation": "permuted",
}


@lru_cache(maxsize=4096)
def written_rule(text: str, signature: Signature) -> FactorRule:
    """The rule that a text says, checked against the shapes that it is for.

    >>> line = Signature.of("[a] [b] -> [c]", [(8, 6)], {"c": 8})
    >>> print(written_rule("<([i, j])->([i]) {i=8, j=6} reduction={j}>", line))
    ([i, j]) -> ([i]) {i=8, j=6} reduced={j}
    """
    said = read_rule(text)
    sides = ((said.operands, signature.operand_shapes), (said.results, signature.result_shapes))
    for noun, (tensors, shapes) in zip(("operand", "result"), sides):
        _check(text, noun, tensors, shapes, said.sizes)
    return _Maker(said).rule()


def _check(
    text: str,
    noun: str,
    tensors: Sequence[Sequence[Sequence[str]]],
    shapes: Sequence[Point],
    sizes: dict[str, int],
) -> None:
    if len(tensors) != len(shapes):
        raise WeftError(
            f"the rule has {len(tensors)} {noun}s where there are {len(shapes)}: {text}"
        )
    for number, (tensor, shape) in enumerate(zip(tensors, shapes)):
        made = [prod(sizes[name] for name in dim) for dim in tensor]
        if made != list(shape):
            raise WeftError(
                f"the rule makes {noun} {number} {made}, which has the shape {list(shape)}: {text}"
            )


class _Maker:
    """Numbers the factors; one along which nothing may go is another in each place."""

    def __init__(self, said: RuleText) -> None:
        self.said = said
        self.names = list(said.sizes)
        self.sizes = list(said.sizes.values())
        self.kinds: list[Kind] = ["parallel"] * len(self.names)
        for word, kind in _WORDS.items():
            for name in said.kinds.get(word, ()):
                self.kinds[self.names.index(name)] = kind
        self.blocked = set(said.kinds.get("blocked_propagation", ()))

    def rule(self) -> FactorRule:
        operands = tuple(map(self._tensor, self.said.operands))
        results = tuple(map(self._tensor, self.said.results))
        sizes = tuple(self.sizes)
        return FactorRule(tuple(self.names), sizes, tuple(self.kinds), operands, results)

    def _tensor(self, tensor: list[list[str]]) -> TensorFactors:
        return tuple(tuple(map(self._factor, dim)) for dim in tensor)

    def _factor(self, name: str) -> int:
        number = self.names.index(name)
        if name not in self.blocked:
            return number
        self.names.append(f"_{len(self.names)}")
        self.sizes.append(self.sizes[number])
        self.kinds.append(self.kinds[number])
        return len(self.names) - 1

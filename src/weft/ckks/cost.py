"""`Cost`: what slot operations take, predicted from sets of diagonals or counted in a program."""

from __future__ import annotations

from dataclasses import dataclass, fields

from weft.ckks.bsgs import Split
from weft.ckks.linear import LinearMap
from weft.values import counted


@dataclass(frozen=True, slots=True)
class Cost:
    """How many operations of each kind; costs of programs that run one after the other add up.

    >>> print(Cost(rotations=3, plain_products=9, rescales=1, levels=1) + Cost(rotations=1))
    4 rotations, 9 plain products, 1 rescale, 1 level
    """

    rotations: int = 0
    plain_products: int = 0
    products: int = 0
    """Of two ciphertexts."""
    rescales: int = 0
    additions: int = 0
    plain_additions: int = 0
    levels: int = 0
    """How many rescales stand between what goes in and what comes out."""
    keys: frozenset[int] = frozenset()
    """The steps that need a rotation key."""
    inputs: int = 0
    """How many ciphertexts go in."""
    outputs: int = 0
    """How many ciphertexts come out."""
    live: int = 0
    """The most ciphertexts that there are at once; 0 where nobody looked."""

    def __add__(self, then: Cost) -> Cost:
        total = {name: getattr(self, name) + getattr(then, name) for name in _SUMS}
        inputs = self.inputs or then.inputs
        outputs, live = then.outputs or self.outputs, max(self.live, then.live)
        keys = self.keys | then.keys
        return Cost(**total, keys=keys, inputs=inputs, outputs=outputs, live=live)

    def __str__(self) -> str:
        said = [(name, getattr(self, name)) for name in _SUMS]
        words = [counted(n, name.replace("_", " ")[:-1]) for name, n in said if n]
        return ", ".join(words) or "nothing"


_SUMS = tuple(each.name for each in fields(Cost))[:7]


def predict(given: LinearMap, parted: Split, bias: bool = False) -> Cost:
    """What a linear map takes, from its sets alone: no step of its program is written.

    >>> from weft.ckks.bsgs import split
    >>> from weft.ckks.linear import linear
    >>> from weft.ckks.packing import Packing
    >>> from weft.lang import Signature
    >>> line = Signature.of("k, k n -> n  sum: k", [(64,), (64, 64)])
    >>> vector = Packing.vector(64, slots=64)
    >>> dense = linear(line, vector, vector, weight=1)
    >>> print(predict(dense, split(dense)))
    14 rotations, 64 plain products, 1 rescale, 63 additions, 1 level
    """
    return Cost(
        rotations=parted.rotations,
        plain_products=given.products,
        rescales=given.outputs,
        additions=given.products - given.outputs,
        plain_additions=given.outputs if bias else 0,
        levels=1,
        keys=parted.keys,
        inputs=given.inputs,
        outputs=given.outputs,
    )

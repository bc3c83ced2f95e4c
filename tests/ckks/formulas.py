"""Formulas for the rotations of a pointwise convolution on a mesh of ciphertexts: oracles of tests.

The mesh has the axes x (features), y (channels) and z (height); a cell computes a block, from one
ciphertext of the input to one of the output. The formulas are for 1 x 1 convolutions, or for any
matrix whose diagonals are counted; exact counts of real layers come from their sets of rotations.
"""

from __future__ import annotations

from typing import NamedTuple

from weft.errors import WeftError
from weft.layout import DeviceMesh

BABIES = 16
"""The most baby steps that the seed takes in a block: 8 of 8 diagonals, 16 of 256 and of 512."""


class Pointwise(NamedTuple):
    """A 1 x 1 convolution, and the slots of a ciphertext."""

    channels: int
    features: int
    height: int
    width: int
    slots: int


class Block(NamedTuple):
    """The block that one cell of the mesh computes."""

    channels: int
    features: int
    pixels: int
    slots: int

    @property
    def diagonals(self) -> int:
        """The number of rolls that bring every channel of the block to every feature."""
        return max(self.channels, self.features)

    @property
    def used(self) -> int:
        """The slots of its data."""
        return self.diagonals * self.pixels

    @property
    def is_doubled(self) -> bool:
        """Whether a ciphertext holds its data twice, so that one rotation rolls them."""
        return 2 * self.used <= self.slots


def block_of(layer: Pointwise, mesh: DeviceMesh) -> Block:
    """Return the block of a cell: channels cut by y, features by x, height by z.

    >>> block_of(Pointwise(64, 16, 7, 7, 1024), mesh_of(1, 4))
    Block(channels=16, features=16, pixels=49, slots=1024)
    """
    x, y, z = _sizes(mesh)
    found = Block(
        -(-layer.channels // y),
        -(-layer.features // x),
        -(-layer.height // z) * layer.width,
        layer.slots,
    )
    if found.used > layer.slots:
        raise WeftError(
            f"a block of {found.diagonals} channels of {found.pixels} pixels takes {found.used} "
            f"slots and a ciphertext has {layer.slots}",
            hint=f"a mesh of more cells than {mesh}",
        )
    return found


def seed_rotations(
    layer: Pointwise, mesh: DeviceMesh, *, diagonals: int | None = None, babies: int = BABIES
) -> int:
    """Return the rotations of a layer as seed 002 counts them: a block's, times the cells.

    If a ciphertext holds the data of a block once, a roll takes two rotations, one roll for each
    diagonal: 2 D. If it holds them twice, a roll is one rotation, and the D diagonals are b baby
    steps and D / b giant ones, with b = min(D, 16): b + D / b.

    >>> small = Pointwise(64, 16, 7, 7, slots=1024)
    >>> seed_rotations(small, mesh_of(1, 4)), seed_rotations(small, mesh_of(2, 8))
    (128, 144)
    >>> deep = Pointwise(2048, 512, 7, 7, slots=32768)
    >>> seed_rotations(deep, mesh_of(1, 4)), seed_rotations(deep, mesh_of(2, 8))
    (4096, 512)

    The seed prints 768 for the last one, 16 (16 + 32): 32 giant steps of 16 are the 512 features
    of the layer, and a block of the mesh has 256 of them. The rule with that number of diagonals:

    >>> seed_rotations(deep, mesh_of(2, 8), diagonals=512)
    768
    """
    block = block_of(layer, mesh)
    count = block.diagonals if diagonals is None else diagonals
    if not block.is_doubled:
        return mesh.size * 2 * count
    step = min(babies, count)
    return mesh.size * (step + -(-count // step))


class Shared(NamedTuple):
    """Baby steps shared by output ciphertexts, giant steps by input ciphertexts."""

    rotations: int
    babies: int


def shared_rotations(outputs: int, inputs: int, diagonals: int) -> Shared:
    """Return the fewest rotations of a matrix with D diagonals between any two ciphertexts.

    Each input is rotated by b - 1 baby steps, whatever the number of outputs; each output by
    D / b - 1 giant steps, whatever the number of inputs: min over b of y (b - 1) + x (D / b - 1).
    The diagonals must be a run, or a product of runs that b cuts into equal blocks.

    >>> shared_rotations(1, 4, 512), shared_rotations(8, 8, 9 * 8)
    (Shared(rotations=86, babies=11), Shared(rotations=120, babies=8))
    """
    for what, count in (("outputs", outputs), ("inputs", inputs), ("diagonals", diagonals)):
        if count < 1:
            raise WeftError(f"there are {count} {what}; at least 1")
    return min(
        Shared(inputs * (b - 1) + outputs * (-(-diagonals // b) - 1), b)
        for b in range(1, diagonals + 1)
    )


def weft_rotations(layer: Pointwise, mesh: DeviceMesh) -> Shared:
    """Return the rotations of a layer if steps are shared over the whole mesh.

    Tiles padded to a power of two make a rotation a roll, at the same number of ciphertexts as
    long as the padded block fits; height that is cut (z) repeats the layer.

    >>> weft_rotations(Pointwise(2048, 512, 7, 7, slots=32768), mesh_of(1, 4))
    Shared(rotations=86, babies=11)
    """
    x, y, z = _sizes(mesh)
    block = block_of(layer, mesh)
    if (
        tile := _power(-(-layer.height // z)) * _power(layer.width)
    ) * block.diagonals > block.slots:
        raise WeftError(
            f"{block.diagonals} channels in tiles of {tile} slots do not fit a ciphertext of "
            f"{block.slots}",
            hint=f"a mesh of more cells than {mesh}",
        )
    found = shared_rotations(x, y, block.diagonals)
    return found._replace(rotations=z * found.rotations)


def mesh_of(x: int, y: int, z: int = 1) -> DeviceMesh:
    """Return the mesh of ciphertexts of a convolution.

    >>> print(mesh_of(2, 8))
    @ciphertexts = <["x"=2, "y"=8, "z"=1]>
    """
    return DeviceMesh("ciphertexts", (x, y, z), ("x", "y", "z"))


def _sizes(mesh: DeviceMesh) -> tuple[int, int, int]:
    if mesh.axis_names != ("x", "y", "z"):
        raise WeftError(
            f'a mesh of ciphertexts has the axes "x", "y" and "z", got {mesh}',
            hint="x cuts features, y channels, z height",
        )
    x, y, z = mesh.shape
    return x, y, z


def _power(size: int) -> int:
    """Return the smallest power of two that is not below the size."""
    return 1 << (size - 1).bit_length()

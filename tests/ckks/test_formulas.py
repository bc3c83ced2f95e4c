"""The totals of seed 002 from one rule, and what shared steps make of them."""

import pytest
from tests.ckks.formulas import (
    Pointwise,
    block_of,
    mesh_of,
    seed_rotations,
    shared_rotations,
    weft_rotations,
)

from weft.errors import WeftError
from weft.layout import DeviceMesh

SMALL = Pointwise(64, 16, 7, 7, slots=1024)
DEEP = Pointwise(2048, 512, 7, 7, slots=32768)


@pytest.mark.parametrize(
    ("layer", "mesh", "rotations"),
    [(SMALL, (1, 4), 128), (SMALL, (2, 8), 144), (DEEP, (1, 4), 4096)],
)
def test_three_totals_that_seed_002_prints(layer, mesh, rotations):
    assert seed_rotations(layer, mesh_of(*mesh)) == rotations


def test_the_total_that_seed_002_prints_for_another_number_of_diagonals():
    """It prints 16 (16 + 32) = 768: as many giant steps as the 512 features of the layer need.

    A block of this mesh has 256 of them; for those the same rule gives 512.
    """
    assert seed_rotations(DEEP, mesh_of(2, 8), diagonals=512) == 768
    assert seed_rotations(DEEP, mesh_of(2, 8)) == 512


def test_a_block_stands_twice_where_half_the_slots_hold_it():
    assert not block_of(SMALL, mesh_of(1, 4)).is_doubled  # 784 of 1024
    assert block_of(SMALL, mesh_of(2, 8)).is_doubled  # 392 of 1024
    assert not block_of(DEEP, mesh_of(1, 4)).is_doubled  # 25088 of 32768
    assert block_of(DEEP, mesh_of(2, 8)).is_doubled  # 12544 of 32768


def test_sizes_that_do_not_divide_are_cut_as_everywhere():
    block = block_of(Pointwise(10, 7, 9, 5, slots=1024), mesh_of(2, 4, 2))
    assert (block.channels, block.features, block.pixels) == (3, 4, 25)


@pytest.mark.parametrize(("x", "y"), [(1, 1), (1, 4), (4, 1), (3, 5), (8, 8)])
@pytest.mark.parametrize("diagonals", [1, 2, 7, 9, 72, 512])
def test_shared_steps_are_the_least_of_all_sizes(x, y, diagonals):
    found = shared_rotations(x, y, diagonals)
    counted = []
    for b in range(1, diagonals + 1):
        babies = {d % b for d in range(diagonals)} - {0}
        giants = {d - d % b for d in range(diagonals)} - {0}
        counted.append(y * len(babies) + x * len(giants))
    assert found.rotations == min(counted) == counted[found.babies - 1]


def test_shared_steps_of_the_layers_that_weft_is_measured_by():
    assert weft_rotations(DEEP, mesh_of(1, 4)).rotations == 86
    assert 4 * (8 - 1) + (512 // 8 - 1) == 4 * (16 - 1) + (512 // 16 - 1) == 91  # powers of two
    assert shared_rotations(8, 8, 9 * 8).rotations == 120  # 64 -> 64, 3 x 3 @ 56
    assert shared_rotations(1, 1, 9 * 512).rotations == 134  # 512 -> 512, 3 x 3 @ 7


def test_height_that_is_cut_repeats_the_layer():
    layer = Pointwise(16, 16, 14, 8, slots=1024)
    one, two = (weft_rotations(layer, mesh_of(2, 2, z)).rotations for z in (1, 2))
    assert two == 2 * one


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (
            lambda: seed_rotations(DEEP, mesh_of(1, 1)),
            "a block of 2048 channels of 49 pixels takes 100352 slots and a ciphertext has 32768",
            'a mesh of more cells than @ciphertexts = <["x"=1, "y"=1, "z"=1]>',
        ),
        (
            lambda: weft_rotations(Pointwise(20, 20, 7, 7, slots=1024), mesh_of(1, 1)),
            "20 channels in tiles of 64 slots do not fit a ciphertext of 1024",
            'a mesh of more cells than @ciphertexts = <["x"=1, "y"=1, "z"=1]>',
        ),
        (
            lambda: block_of(SMALL, DeviceMesh("m", (2, 2), ("x", "y"))),
            'a mesh of ciphertexts has the axes "x", "y" and "z", got @m = <["x"=2, "y"=2]>',
            "x cuts features, y channels, z height",
        ),
        (lambda: shared_rotations(1, 0, 4), "there are 0 inputs; at least 1", None),
    ],
)
def test_refusals(call, message, hint):
    with pytest.raises(WeftError) as caught:
        call()
    assert str(caught.value) == message
    assert getattr(caught.value, "__notes__", []) == ([f"hint: {hint}"] if hint else [])

"""Weft gives the answers of ttnn that `tests/ttmesh/parity.py --store` recorded."""

import json
from collections import Counter
from pathlib import Path

import pytest
from tests.ttmesh.cases import REASONS, weft_answer, weft_chip
from tests.ttmesh.parity import weft_tiles

from weft.errors import LayoutError
from weft.ttmesh.mapper import Shard, runtime_shards

DATA = Path(__file__).parent / "data"
MAPPERS = json.loads((DATA / "mappers.json").read_text(encoding="utf-8"))
CHIPS = json.loads((DATA / "chips.json").read_text(encoding="utf-8"))
TILES = json.loads((DATA / "tiles.json").read_text(encoding="utf-8"))


def test_a_thousand_configs_are_distributed_or_refused_as_by_ttnn():
    assert len(MAPPERS) == 1000
    for case in MAPPERS:
        assert weft_answer(case) == case["answer"], case


def test_the_sample_has_every_kind_of_answer():
    counts = Counter(case["answer"].get("refused", "shards") for case in MAPPERS)
    assert set(counts) == {"shards", *REASONS}
    assert counts["shards"] > 500


def test_layouts_in_a_chip_are_accepted_or_refused_as_by_ttnn():
    assert {next(iter(case["answer"])) for case in CHIPS} == {"cores", "refused"}
    for case in CHIPS:
        assert weft_chip(case) == case["answer"], case


@pytest.mark.parametrize("case", TILES, ids=lambda case: f"{case['kind']}{case['shape']}")
def test_tiles_equal_those_of_ttnn_byte_by_byte(case):
    assert weft_tiles(case) == case["answer"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((4,), (2,), [0], (3,)), "a distribution over (3,) needs 3 chips of 2"),
        (((4,), (2, 2), [0]), "1 placements for the 2 axes of (2, 2)"),
        (
            ((4,), (2, 4), [0], (8,), (0, 1)),
            "a distribution over (8,) rearranges the chips of a mesh (2, 4), "
            "which allows no offset: (0, 1)",
        ),
        (
            ((4,), (2, 4), [0, None], (1, 2), (1,)),
            "offset (1,) has 1 axes; the mesh (2, 4) has 2",
        ),
        (((4,), (2, 4), [0, None], (1, 2), (0, 3)), "mesh axis 1 of size 4 ends before 3 + 2"),
        (
            ((8,), (2, 4), [0, -1]),
            "dimension 0 is cut by mesh axes (0, 1); ttnn's mapper cuts each dimension by one",
        ),
        (((8,), (2,), [Shard(0, 2)]), "dimension 0 is interleaved, which ttnn does not support"),
        (((0,), (2,), [0]), "dimension 0 of size 0 has no chunks"),
        (
            ((5, 2), (4, 2), [0, None]),
            "dimension 0 of size 5 makes 3 chunks for the 4 chips of mesh axis 0",
        ),
        (
            ((7,), (4,), [0]),
            "dimension 0 of size 7 makes chunks of 2 and a shorter last one over mesh axis 0=4",
        ),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(LayoutError) as refused:
        runtime_shards(*arguments)
    assert str(refused.value) == message

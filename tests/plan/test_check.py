"""Certificates: those of plans are accepted, and whatever is changed in them is refused."""

import ast
import copy
from pathlib import Path

import numpy as np
import pytest

import weft.plan.check
from weft import DeviceMesh, Plan, ops, propagate, trace
from weft.plan.check import CertificateError, check

MESH = DeviceMesh("m", (2, 2), ("x", "y"))


def block(a, w1, w2, bias):
    h = ops.relu(a @ w1)
    return ops.linear(h, w2, bias).sum(0), ops.softmax(h)[1:, ::2]


def certificate():
    graph = trace(
        block,
        (8, 6),
        (6, 12),
        (12, 4),
        (4,),
        meshes=[MESH],
        shardings={"a": '<@m, [{"x"}, {}]>', "w1": '<@m, [{}, {"y"}]>'},
    )
    return Plan.of(propagate(graph)).verify()


def entries(data, kind):
    return [entry for entry in data["entries"] if entry["kind"] == kind]


def test_the_checker_is_small_and_independent():
    source = Path(weft.plan.check.__file__).read_text(encoding="utf-8")
    assert len(source.splitlines()) < 200
    imported = {
        node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module.startswith("weft")
    }
    assert imported == {"weft.space"}


def test_a_certificate_tells_the_whole_story():
    data = certificate()
    assert {entry["kind"] for entry in data["entries"]} == {
        "input",
        "move",
        "take",
        "hide",
        "apply",
    }
    covers = {entry["operator"]: entry["cover"] for entry in data["applications"]}
    assert covers["linear"] == {"boxes": 4, "parts": 2}
    check(data)


def change_box(entry, key="boxes"):
    box = next(box for box in entry[key] if box[0] != box[1])
    box[1][0] -= 1


def change_piece(entry):
    piece = next(p for p in entry["pieces"] if p[3][0] > p[2][0] + 1)
    piece[3][0] -= 1


MUTATIONS = {
    "an input that is not all there": lambda d: change_box(entries(d, "input")[0]),
    "a box too small": lambda d: change_box(entries(d, "apply")[0]),
    "a piece that is lost": lambda d: entries(d, "move")[0]["pieces"].pop(),
    "a piece twice": lambda d: entries(d, "move")[0]["pieces"].append(
        entries(d, "move")[0]["pieces"][0]
    ),
    "a piece too small": lambda d: change_piece(entries(d, "move")[0]),
    "a bias twice": lambda d: entries(d, "hide")[0].update(hidden=[False] * 4),
    "a bias never": lambda d: entries(d, "hide")[0].update(hidden=[True] * 4),
    "another matrix": lambda d: entries(d, "apply")[0]["operands"][0]["matrix"][0].reverse(),
    "no monoid": lambda d: next(e for e in entries(d, "apply") if e["name"] == "linear").update(
        monoid=""
    ),
    "an output that is missing": lambda d: d["outputs"].append("nowhere"),
}


@pytest.mark.parametrize("what", MUTATIONS)
def test_what_is_changed_is_refused(what):
    data = certificate()
    MUTATIONS[what](data)
    with pytest.raises(CertificateError):
        check(data)


def test_errors_name_the_entry_and_the_box():
    data = certificate()
    entries(data, "move")[0]["pieces"].pop()
    with pytest.raises(CertificateError, match=r"entry \d+, move sum_dim operand 0 .* device 3"):
        check(data)


def corners_of(data):
    """The corners of every box that somebody holds, computes or sends.

    What is taken of what is held may be more than what is needed, so that these boxes may grow.
    """
    found = []
    for entry in data["entries"]:
        if entry["kind"] == "take":
            continue
        lists = [entry.get("boxes", []), *(result["boxes"] for result in entry.get("results", []))]
        found += [corner for boxes in lists for box in boxes for corner in box]
        found += [corner for piece in entry.get("pieces", []) for corner in piece[2:]]
    return [corner for corner in found if corner]


def test_no_changed_box_goes_unnoticed():
    """The boxes are what is proved: move a side of any of them, and the proof is refused."""
    original = certificate()
    rng = np.random.default_rng(0)
    count = len(corners_of(original))
    for _ in range(200):
        data = copy.deepcopy(original)
        corner = corners_of(data)[int(rng.integers(count))]
        corner[int(rng.integers(len(corner)))] += int(rng.choice([-1, 1]))
        with pytest.raises(ValueError):  # noqa: PT011 - a box may also end before it begins
            check(data)

"""The examples that the guide ends in, each in a process of its own, as a reader runs it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def said_by(name, *arguments):
    ran = subprocess.run(
        [sys.executable, "-m", f"examples.{name}", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


@pytest.mark.slow
def test_a_model():
    said = said_by("shard_model")
    counts = re.findall(r"^predicted (\d+) B.*, counted (\d+) B$", said, re.MULTILINE)
    assert len(counts) == 2
    assert all(predicted == counted for predicted, counted in counts)
    assert float(re.search(r"what one array does, to (\S+)", said)[1]) < 1e-5


def test_a_volume():
    said = said_by("large_volume")
    assert "received 0 B, as predicted" in said
    assert "256 chunks in 32 shards: 256 match their checksums" in said
    assert float(re.search(r"checksums; (\S+) from what one process", said)[1]) < 1e-5


def test_a_camera():
    said = said_by("record_camera")
    seen = re.findall(r"^(\d+) frames came, and a reader sees (\d+)$", said, re.MULTILINE)
    assert seen == [("25", "25"), ("50", "50"), ("75", "75"), ("100", "100")]
    assert "100 frames, 208 chunks" in said


def test_an_encrypted_layer():
    said = said_by("encrypted_layer")
    assert "predicted 10 rotations, counted 10" in said
    assert float(re.search(r"at most apart (\S+)", said)[1]) < 1e-5


def test_chips():
    said = said_by("feed_chips")
    assert re.findall(r"^(\w+): writes: (\d+)", said, re.MULTILINE) == [
        ("qkv", "1"), ("up", "1"), ("down", "1"),
    ]  # fmt: skip

"""Plans that other frameworks take: their results, and their collectives beside the prediction."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def said_by(module):
    """What an example prints, in a process of its own, for it has devices or ranks of its own."""
    keep = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    ran = subprocess.run(
        [sys.executable, "-m", module],
        cwd=ROOT, env=keep, capture_output=True, text=True, check=False, timeout=500,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


@pytest.mark.parametrize(
    ("module", "steps"),
    [
        ("examples.jax_plan", ["all-reduce", "all-reduce"]),
        ("examples.torch_plan", ["all_reduce", "reduce_scatter_tensor", "all_gather_into_tensor"]),
    ],
)
def test_bytes_are_as_predicted(module, steps):
    said = said_by(module)
    (counts,) = re.findall(r"^predicted (\d+) B, (?:compiled|counted) (\d+) B$", said, re.MULTILINE)
    assert counts == ("196608", "196608")
    assert re.findall(r"^(?:compiled|counted) +([\w-]+)", said, re.MULTILINE) == steps
    (apart,) = re.findall(r"at most apart (\S+)", said)
    assert float(apart) < 1e-5

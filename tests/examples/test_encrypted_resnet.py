"""The encrypted network: its plan is what the example says, and the quick one runs on SEAL."""

import re

import pytest
from examples import encrypted_resnet

from weft import ckks

pytestmark = pytest.mark.slow


def test_the_quick_one_runs_on_real_ciphertexts(capsys):
    encrypted_resnet.main(["--quick"])
    said = capsys.readouterr().out
    assert "security is not checked" in said
    (apart,) = re.findall(r"at most apart +(\S+)", said)
    assert float(apart) < 1e-6
    counts = re.findall(r"predicted +([\d,]+) +counted +([\d,]+)", said)
    assert len(counts) == 4
    assert all(predicted == counted for predicted, counted in counts)


def test_the_real_one_fits_its_ring_and_its_keys():
    plan = ckks.plan(encrypted_resnet.network(), slots=1 << 14, keys=encrypted_resnet.KEYS)
    assert plan.encrypted == ("image",)
    chosen = plan.parameters()
    assert (chosen.ring, chosen.security, plan.depth) == (1 << 15, 128, 17)
    assert len(plan.cost.keys) <= encrypted_resnet.KEYS
    assert plan.key_bytes(chosen) < 5 << 30

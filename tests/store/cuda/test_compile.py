"""All kernels compile for the cards they are for."""

import shutil
import subprocess

import pytest
from tests.store.cuda.host import KERNELS

SOURCES = sorted(KERNELS.glob("*.cu"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_sources_compile(source, arch, tmp_path):
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc to compile the kernels")
    made = tmp_path / "kernels.cubin"
    ran = subprocess.run(
        ["nvcc", f"-arch={arch}", "--cubin", "-Werror", "all-warnings", "-o", made, source],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert made.stat().st_size > 0

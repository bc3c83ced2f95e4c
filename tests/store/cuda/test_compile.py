"""All kernels compile for the cards they are for."""

import shutil
import subprocess

import pytest
from tests.store.cuda.host import KERNELS

from weft.store.chunk_layout import FrameLayout
from weft.store.cuda.device import inlined, kernel_text
from weft.store.cuda.pyramid import reduce_source
from weft.store.cuda.read import place_source
from weft.store.cuda.scatter import scatter_source

SOURCES = sorted(path.name for path in KERNELS.glob("*.cu"))
TILING = FrameLayout((None, 3, 2048, 2048), (1, 1, 256, 256), (1, 1, 2048, 2048))
BEFORE = {
    "scatter.cu": scatter_source(TILING, (), 2, swapped=2),
    "place.cu": place_source(3, 16, 2, 2, 1 << 20),
    "reduce.cu": reduce_source((4, 4), (2, 2, 2), "median", "uint64"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_sources_compile(name, arch, tmp_path):
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc to compile the kernels")
    source, made = tmp_path / name, tmp_path / "kernels.cubin"
    source.write_text(inlined(f"{BEFORE.get(name, '')}\n{kernel_text(name)}"), encoding="utf-8")
    ran = subprocess.run(
        ["nvcc", f"-arch={arch}", "--cubin", "-Werror", "all-warnings", "-o", made, source],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert made.stat().st_size > 0

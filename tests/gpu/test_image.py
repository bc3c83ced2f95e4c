"""Images on a GPU: all levels are those that the CPU makes."""

import numpy as np
import pytest

from weft.store import Blosc, create_image, open_image

cupy = pytest.importorskip("cupy", reason="no CuPy")
if not cupy.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)


@pytest.mark.parametrize("method", ["mean", "min", "max", "median"])
@pytest.mark.parametrize("factors", [(1, 2, 2), (2, 2, 2), (3, 1, 2)], ids=str)
@pytest.mark.parametrize("dtype", ["uint16", "int32", "float32"])
def test_levels_are_those_of_the_cpu(tmp_path, monkeypatch, method, factors, dtype):
    monkeypatch.setattr(
        "weft.store.cuda.pyramid.HELD", {"uint16": 1, "int32": 9000}.get(dtype, 1 << 27)
    )
    data = (np.random.default_rng(0).standard_normal((11, 70, 50)) * 500).astype(dtype)
    for device in ("cpu", "cuda"):
        with create_image(
            tmp_path / device, (None, 70, 50), dtype, (4, 32, 32), (8, 64, 64), axes="tyx",
            factors=factors, levels=3, method=method, device=device,
            codecs=[Blosc("lz4", 5, "bitshuffle")],
        ) as writer:  # fmt: skip
            for start in range(0, 11, 3):
                block = data[start : start + 3]
                writer.append_rows(cupy.asarray(block) if device == "cuda" and start else block)
    ours, theirs = open_image(tmp_path / "cuda"), open_image(tmp_path / "cpu")
    for one, two in zip(ours.levels, theirs.levels):
        assert one.shape == two.shape
        assert np.array_equal(one.read(), two.read())

"""`weft store`: write, info, verify, copy; refusals."""

import json

import numpy as np
import pytest
import zarr

from weft.cli import main
from weft.store import open_array


@pytest.fixture
def stack(tmp_path):
    array = np.random.default_rng(0).integers(0, 9, (10, 20, 30)).astype("uint16")
    np.save(tmp_path / "stack.npy", array)
    return array


def said(capsys, *args):
    assert main(["store", *map(str, args), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("codec", ["none", "zstd", "gzip", "blosc-lz4", "blosc-zstd"])
def test_a_file_is_written_looked_at_verified_and_copied(capsys, tmp_path, stack, codec):
    one, two = tmp_path / "one.zarr", tmp_path / "two.zarr"
    sizes = ["--chunks", 4, 8, 8, "--shards", 8, 16, 16, "--codec", codec]
    written = said(capsys, "write", tmp_path / "stack.npy", one, *sizes)
    assert written["bytes"] == stack.nbytes
    told = said(capsys, "info", one)
    assert (told["shape"], told["chunks"], told["shards"]) == ([10, 20, 30], [4, 8, 8], [8, 16, 16])
    assert told["stored"] == written["stored"]
    assert said(capsys, "verify", one)["chunks"] == 3 * 3 * 4
    said(capsys, "copy", one, two, "--chunks", 3, 20, 7)
    for path in (one, two):
        assert np.array_equal(open_array(path).read(), stack)
        assert np.array_equal(zarr.open_array(path, mode="r")[...], stack)
    assert said(capsys, "info", two)["codecs"] == told["codecs"]


def test_a_table_is_printed(capsys, tmp_path, stack):
    assert main(["store", "write", str(tmp_path / "stack.npy"), str(tmp_path / "a")]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["rows", "10"]
    assert main(["store", "info", str(tmp_path / "a")]) == 0
    assert "dtype            uint16" in capsys.readouterr().out


def test_refusals_are_one_line(capsys, tmp_path, stack):
    (tmp_path / "text.npy").write_text("no numbers")
    target = str(tmp_path / "a")
    for args, message in [
        (["info", target], "holds no Zarr v3 array"),
        (["write", str(tmp_path / "text.npy"), target], "is no .npy file of numbers"),
        (["write", str(tmp_path / "gone.npy"), target], "gone.npy"),
        (["write", str(tmp_path / "stack.npy"), target, "--chunks", "4"], "must have one rank"),
    ]:
        assert main(["store", *args]) == 2
        assert message in capsys.readouterr().err
    assert main(["store", "write", str(tmp_path / "stack.npy"), target]) == 0
    assert main(["store", "write", str(tmp_path / "stack.npy"), target]) == 2
    assert "holds an array already" in capsys.readouterr().err
    shard = next(file for file in (tmp_path / "a" / "c").rglob("*") if file.is_file())
    shard.write_bytes(shard.read_bytes()[:-1])
    assert main(["store", "verify", target]) == 2
    assert "checksum" in capsys.readouterr().err

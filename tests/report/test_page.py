"""The page as a file: it needs nothing, is small, and no name in it is markup."""

import base64
import hashlib
import json
import re
import subprocess
import sys
import zlib

import numpy as np
import pytest
import zarr
from tests.report.programs import ODD, planned
from tests.runtime.cluster.metrics import recorded

from weft import Machine, WeftError, ckks, ops, store, trace
from weft.report import Subject, render, write
from weft.report.data import front_of
from weft.report.page import MOST_BYTES, as_function, asset, bundle, embedded, page_of
from weft.report.target_data import ckks_data, store_data


def data_in(page):
    """The data of the page, read as its script does."""
    plain = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    if plain:
        return json.loads(plain[1])
    packed = re.search(r'<script type="text/plain" id="packed">(.*?)</script>', page)[1]
    return json.loads(zlib.decompress(base64.b64decode(packed)))


def written(tmp_path, *args, **more):
    return write(tmp_path / "report.html", *args, **more).read_text(encoding="utf-8")


def test_a_page_is_one_file_without_external_resources(tmp_path):
    page = written(tmp_path, planned(1), run=recorded(Machine(flops={"float32": 1e9})))
    assert len(page.encode()) < MOST_BYTES
    assert not re.search(r"(src|href)=(?!\"data:,)", page)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(", page)
    urls = set(re.findall(r"https?://[^\"' ]+", page))
    assert urls == {"http://www.w3.org/2000/svg"}  # a name, which nobody opens
    script = re.search(r'<script type="module">(.*)</script>', page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "default-src 'none'" in page


def test_any_name_is_escaped_as_text(tmp_path):
    page = written(tmp_path, planned(1, first=ODD), title=ODD)
    assert page.count("</script>") == 2
    assert "<b>" not in page
    data = data_in(page)
    assert data["title"] == ODD
    assert data["plans"][0]["values"][0]["name"] == ODD


def test_many_data_are_deflated_and_are_the_same(tmp_path):
    plan = planned(80)
    page = written(tmp_path, plan)
    assert 'id="packed"' in page
    assert len(page.encode()) < 300_000
    assert data_in(page)["plans"][0]["figures"]["operators"] == 800
    small = {"name": ODD}
    assert (
        json.loads(embedded(small)[len('<script type="application/json" id="data">') : -9]) == small
    )


def test_details_are_left_out_until_the_page_fits(monkeypatch):
    subject = Subject(front_of([planned(2)]))
    whole = len(render(subject).encode())
    monkeypatch.setattr("weft.report.page.MOST_BYTES", whole - 1)
    page = render(subject)
    assert data_in(page)["left_out"] == "messages between devices are left out"
    monkeypatch.setattr("weft.report.page.MOST_BYTES", 1000)
    with pytest.raises(WeftError, match=r"of 1 plans has \d+ B; at most 1000 B fit"):
        render(subject)


def test_a_plan_is_shown_where_there_is_no_numpy(tmp_path):
    code = """
import sys
sys.modules["numpy"] = None
from weft import Plan, propagate, trace
from weft.report import write
graph = trace(lambda x: x + x, (8,), meshes=['@m = <["x"=2]>'])
print(write(sys.argv[1], Plan.of(propagate(graph))).stat().st_size)
"""
    page = tmp_path / "a.html"
    args = [sys.executable, "-c", code, page]
    ran = subprocess.run(args, capture_output=True, text=True, check=True)
    assert int(ran.stdout) == page.stat().st_size > 50_000


def test_a_plan_and_a_front_are_one_too_many(tmp_path):
    with pytest.raises(WeftError, match="either a plan or a front"):
        write(tmp_path / "a.html", planned(1), front=[planned(1)])


def test_modules_become_one_script():
    script = bundle("main")
    assert script.index("const module_dom ") < script.index("const module_graph ")
    assert script.count("const module_dom ") == 1
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)
    with pytest.raises(WeftError, match=r"a\.js has an unsupported import or export"):
        as_function("a", 'import x from "./x.js";')


def test_modules_that_import_each_other_are_refused(monkeypatch):
    texts = {"a.js": 'import { b } from "./b.js";', "b.js": 'import { a } from "./a.js";'}
    monkeypatch.setattr("weft.report.page.asset", texts.__getitem__)
    with pytest.raises(WeftError, match="modules import each other: a -> b -> a"):
        bundle("a")


def test_no_module_writes_markup():
    """Names are escaped by never being parsed."""
    for name in ("graph", "panel", "dom", "front", "store", "run", "main"):
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write", asset(f"{name}.js"))


def test_templates_have_only_the_places_that_are_filled():
    assert asset("page.html").split("%%")[1::2] == ["policy", "title", "style", "data", "script"]
    assert "%%" not in page_of({"title": "%%", "plans": []}).replace("<title>%%", "").replace(
        '"title":"%%"', ""
    )


# Stores and ciphertexts.


@pytest.fixture
def place(tmp_path):
    with store.create(
        tmp_path / "a.zarr", (None, 20, 24), "uint16", (2, 8, 8), (4, 16, 16), codecs="zstd"
    ) as writer:
        frames = np.zeros((6, 20, 24), "uint16")
        frames[:, :8, :8] = np.random.default_rng(0).integers(0, 60000, (6, 8, 8))
        writer.append(frames)
    return tmp_path / "a.zarr"


def test_a_store_has_the_bytes_of_its_files(place):
    data = store_data(place)
    assert (data["grid"], data["inner"], data["count"]) == ([2, 2, 2], [2, 2, 2], 8)
    for number, file in enumerate(data["files"]):
        path = place / "c" / "/".join(str(number >> bit & 1) for bit in (2, 1, 0))
        assert (file is None) == (not path.exists())
        if file is not None:
            assert file[0] == path.stat().st_size
            assert sum(size or 0 for size in file[1]) + 16 * 8 + 4 == file[0]
    assert any(file and None in file[1] for file in data["files"])
    assert store_data(store.open(place)) == data


def test_a_store_without_shards_has_no_chunks_in_them(tmp_path):
    zarr.create_array(tmp_path / "b.zarr", shape=(4, 6), chunks=(2, 3), dtype="uint8")[:] = 1
    data = store_data(tmp_path / "b.zarr")
    assert not data["is_sharded"]
    assert [len(file) for file in data["files"]] == [1] * 4


def test_several_stores_are_several_views(tmp_path, place):
    data = data_in(written(tmp_path, store=[str(place), store.open(place)]))
    assert len(data["stores"]) == 2
    assert len(data_in(written(tmp_path, store=place))["stores"]) == 1


def test_a_ciphertext_plan_in_the_report_equals_the_command_output(capsys, tmp_path):
    layer = trace(lambda v, w: ops.convolve(v, w, padding=(1, 1)), (1, 4, 8, 8), (8, 4, 3, 3))
    planned_ = ckks.plan(layer, slots=4096, encrypted="v")
    data = ckks_data(planned_)
    assert data["headline"] == planned_.headline
    assert data["headline"].startswith("encrypted: v in [-1, 1]")
    assert data["total"]["rotations"] == planned_.cost.rotations
    (only,) = data["layers"]
    assert (only["start"], only["level"], only["keys"]) == (1, 0, len(planned_.cost.keys))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"slots": -1}', "slots: expected a count, 0 or more"),
        ('{"slots": 8, "depth": 1, "layers": [{"level": "x"}]}', r"layers\[0\]"),
    ],
)
def test_a_ciphertext_plan_that_is_none(text, message):
    with pytest.raises(WeftError, match=message):
        ckks_data(text)

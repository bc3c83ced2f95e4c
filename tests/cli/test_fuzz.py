"""Hostile files and words on the command line: an answer or a refusal, never a bug of ours."""

import io
import json
import os
from contextlib import chdir, redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from tests.fuzzing import Reader, fuzz, input_count
from tests.lang.test_fuzz import loop, mlp
from tests.mutations import mutate_bytes, mutate_json

from weft import Plan, propagate, trace
from weft.cli import main
from weft.lang.graph_json import to_json

REFUSED = 2


def _run(*words):
    """Run a command; what fails as a bug would shows its traceback."""
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            code = main(list(words))
    except SystemExit as stop:
        code = stop.code
    assert code in (0, REFUSED), f"{words} -> {code}: {said.getvalue()[-400:]}"


def _graphs():
    product = trace(lambda x, w: x @ w, (4, 8), (8, 2), names=["x", "w"])
    return [to_json(graph).encode() for graph in (mlp(), loop(), product)]


def _planned(data):
    with TemporaryDirectory() as folder, chdir(folder):
        Path("graph.json").write_bytes(data)
        _run("plan", "graph.json", "-o", "plan.json")
        _run("propagate", "graph.json")
        _run("show", "graph.json")
        _run("ckks", "plan", "graph.json", "--ring", "1024")


GRAPHS = Reader(_graphs, _planned, mutate_json)


def _plans():
    graph = mlp()
    plan = json.loads(Plan.of(propagate(graph)).to_json())
    front = {"objectives": ["seconds"], "points": [{"seconds": 1}], "is_exact": True}
    layers = [{"name": "a", "operator": "b", "mesh": "1", "packing": "c", "level": 1, "start": 2}]
    counts = ("rotations", "plain_products", "products", "inputs", "outputs", "bytes")
    layers[0] |= dict.fromkeys(counts, 3)
    said = {"slots": 8, "depth": 3, "parameters": "N=16", "layers": layers, "total": layers[0]}
    return [json.dumps(one).encode() for one in (plan, plan, front, said)]


def _reported(data):
    with TemporaryDirectory() as folder, chdir(folder):
        Path("file.json").write_bytes(data)
        _run("report", "file.json", "-o", "page.html")
        _run("diff", "file.json", "file.json")
        _run("show", "file.json", "--json")


PLANS = Reader(_plans, _reported, mutate_json)


def _words():
    lines = [
        ["show", '@m = <["x"=2, "y"=4]>'],
        ["show", '@m = <["x"=2, "y"=4]>', "8x16", '<@m, [{"x"}, {"y"}]>'],
        ["show", '@m = <["x"=2]>', "8,16", '<@m, [{}, {"x"}]>', "--json"],
        ["show", '@m = <["x"=4]>', "[8]", '<@m, [{"x":(1)2}]>', "--svg"],
        ["ttmesh", "lower", "--shape", "1,1,64,384", "--mesh", "1x8", "--dims", "none,3:3"],
        ["ttmesh", "lower", "--shape", "4,3,32,32", "--mesh", "2x4", "--dims", "none,0", "--json"],
        ["run", "plan.json", "--memory", "2GiB", "--workers", "8", "--chunks", "y=64,64"],
        ["store", "write", "-", "a.zarr", "--shape", "-1", "4", "--dtype", "uint8"],
    ]
    return ["\0".join(line).encode() for line in lines]


def _hostile_words():
    lines = [
        ["show", '@m = <["x"=1000000000000]>'],
        ["show", '@m = <["x"=1000000, "y"=1000000]>', "8x16", '<@m, [{"x"}, {"y"}]>'],
        ["show", '@m = <["x"=1000000, "y"=1000000]>', "--svg"],
        ["show", '@m = <["x"=8]>', "x".join(["2"] * 5000), "<@m, [" + "{}," * 5000 + "]>"],
        ["ttmesh", "lower", "--shape", "1,1,64,384", "--mesh", "1000000x1000000", "--dims", "3"],
        ["ttmesh", "lower", "--shape", "9" * 5000, "--mesh", "2x4", "--dims", "0"],
        ["ttmesh", "lower", "--shape", "1,1,8,8", "--mesh", "2x4", "--dims", "3:" + "9" * 5000],
        ["run", "plan.json", "--memory", "9" * 5000, "--workers", "9" * 5000],
        ["plan", "typo"],
        ["plan", ":"],
        ["plan", "x:"],
        ["plan", ":x"],
    ]
    return ["\0".join(line).encode() for line in lines]


def _said(data):
    with TemporaryDirectory() as folder, chdir(folder):
        _run(*data.decode("utf-8", "replace").split("\0"))


WORDS = Reader(_words, _said, mutate_bytes, _hostile_words)


def _arrays():
    found = []
    for array in (np.arange(6.0).reshape(2, 3), np.ones(4, "u2"), np.array(True)):
        stream = io.BytesIO()
        np.save(stream, array)
        found.append(stream.getvalue())
    return found


def _written(data):
    """Arrays in files as inputs, of a run and of a store."""
    with TemporaryDirectory() as folder, chdir(folder):
        Path("x.npy").write_bytes(data)
        Path("plan.json").write_text(PLAN, encoding="utf-8")
        _run("store", "write", "x.npy", "x.zarr")
        words = [word for name in "wbv" for word in ("--input", f"{name}={os.devnull}.npy")]
        _run("run", "plan.json", "--input", "x=x.npy", *words, "--output", "matmul=y.npy")


PLAN = Plan.of(propagate(mlp())).to_json()


def _hostile_arrays():
    def header(text):
        return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()

    return [
        b"",
        b"\x93NUMPY",
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }\n"),
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }\n"),
        header("{'descr': '|O', 'fortran_order': False, 'shape': (3,), }\n"),
        header("(" * 9000),
        header("{'descr': " + "[" * 2000),
        header("-" * 9000 + "1"),
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (" + "9" * 5000 + ",), }\n"),
        header("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (1,), }\n") + bytes(8),
        b"PK\x03\x04" + bytes(100),
    ]


ARRAYS = Reader(_arrays, _written, mutate_bytes, _hostile_arrays)


def test_hostile_graphs_are_planned_or_refused():
    fuzz("tests.cli.test_fuzz:GRAPHS", input_count() // 5)


def test_hostile_plans_are_reported_or_refused():
    fuzz("tests.cli.test_fuzz:PLANS", input_count() // 5)


def test_hostile_words_are_understood_or_refused():
    fuzz("tests.cli.test_fuzz:WORDS", input_count() // 2)


def test_hostile_arrays_are_written_or_refused():
    fuzz("tests.cli.test_fuzz:ARRAYS", input_count() // 5)

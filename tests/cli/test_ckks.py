"""`weft ckks`: tables and JSON that say what the library says, runs that are counted; refusals."""

import json
import sys
from dataclasses import replace
from inspect import signature

import numpy as np
import pytest
from examples.resnet import resnet20

from weft import Machine, ckks, ops, trace
from weft.ckks.calibrate import ROWS, OperationTimes
from weft.cli import main
from weft.lang.graph_json import to_json

RELU = ckks.fit("relu", 2, -4, 4)
TOY = ["--ring", "256", "--security", "none"]


def network(x, w, b, v):
    y = ops.convolve(x, w, (1, 1), (1, 1), bias=b)
    y = ops.mean(ops.polynomial(y, **RELU.attributes), (2, 3))
    return ops.linear(y, v)


def graph_of(function=network, shapes=((1, 3, 8, 8), (4, 3, 3, 3), (4,), (4, 10))):
    weights = [name for name in ("w", "b", "v") if name in signature(function).parameters]
    return trace(function, *shapes, parameters=weights)


def arrays():
    rng = np.random.default_rng(0)
    graph = graph_of()
    return {value.name: rng.normal(size=value.shape) / 5 for value in graph.inputs}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a model, its weights and an image."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph.json").write_text(to_json(graph_of()), encoding="utf-8")
    given = arrays()
    np.save("x.npy", given.pop("x"))
    np.savez("weights.npz", **given)
    return tmp_path


def run_toy(*more, weights="weights.npz", image="x=x.npy"):
    return main(["ckks", "run", "graph.json", "--weights", weights, "-i", image, *TOY, *more])


def without_help(text):
    """The lines without the hint that an error gets which has none."""
    return [line for line in text.splitlines() if not line.endswith("--help")]


def refused(capsys, args, *lines):
    assert main(["ckks", *args]) == 2
    seen = capsys.readouterr()
    assert "Traceback" not in seen.err
    assert not seen.out
    said = "\n".join(without_help(seen.err)[-len(lines) :])
    assert said == "\n".join([f"weft ckks {args[0]}: {lines[0]}", *lines[1:]])


# -- plan -----------------------------------------------------------------------------------------


def test_a_plan_is_printed_with_parameters_and_keys(capsys, folder):
    assert main(["ckks", "plan", "graph.json"]) == 0
    plan = ckks.plan(graph_of(), slots=8192)
    assert capsys.readouterr().out == (
        f"{plan}\n\n"
        "parameters  CKKS N=16384: 8192 slots, depth 4, 50 + 4 x 40 + 60 = 270 bits of 438 at "
        "128-bit security\n"
        f"keys        {len(plan.cost.keys)} rotation keys and one for products, 172 MiB\n"
    )


@pytest.mark.slow
def test_the_smallest_ring_that_holds_it_is_taken(capsys, folder):
    for more, ring in ((["--scale-bits", "25"], 8192), (["--security", "256"], 32768)):
        assert main(["ckks", "plan", "graph.json", "--json", *more]) == 0
        data = json.loads(capsys.readouterr().out)
        assert data["ring"] == 2 * data["slots"] == ring


def test_a_plan_as_json(capsys, folder):
    assert (
        main(["ckks", "plan", "graph.json", "--slots", "128", "--security", "none", "--json"]) == 0
    )
    data = json.loads(capsys.readouterr().out)
    plan = ckks.plan(graph_of(), slots=128)
    assert data["total"]["rotations"] == plan.cost.rotations
    assert data["total"]["keys"] == sorted(plan.cost.keys)
    assert [layer["plain_products"] for layer in data["layers"]] == [
        placed.cost.plain_products for placed in plan.layers
    ]
    sizes = [
        sum(p.ciphertexts * (at + 1) for p, at in zip(each.sources, each.source_levels))
        + each.target.ciphertexts * (each.level + 1)
        for each in plan.layers
    ]
    assert [layer["bytes"] for layer in data["layers"]] == [2 * 256 * 8 * n for n in sizes]
    assert data["key_bytes"] == plan.key_bytes(plan.parameters(security=None))
    assert data["parameters"].endswith("security is not checked")


def test_few_keys(capsys, folder):
    assert main(["ckks", "plan", "graph.json", "--keys", "12", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["total"]["keys"]) <= 12
    assert main(["ckks", "plan", "graph.json", "--memory", "0.1", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    key = ckks.Parameters(data["ring"], data["depth"]).rotation_key_bytes
    assert len(data["total"]["keys"]) * key <= 0.1 * 2**30 < 22 * key


@pytest.mark.slow
def test_a_network_that_no_ring_holds(capsys):
    assert main(["ckks", "plan", "examples.resnet:resnet20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    depth = ckks.plan(resnet20(), 32768).depth
    assert lines[-1] == (
        f"parameters  depth {depth} at 40 bits needs a modulus of {110 + 40 * depth} bits; no ring "
        "of the standard holds it at 128-bit security, N=65536 has room for 1747, depth 40: it "
        "would need bootstrapping"
    )


def test_a_ring_that_is_too_small(capsys, folder):
    assert main(["ckks", "plan", "graph.json", "--ring", "8192"]) == 0
    assert capsys.readouterr().out.endswith(
        "parameters  depth 4 at 40 bits needs a modulus of 270 bits; N=8192 does not hold it at "
        "128-bit security, N=16384 would\n"
    )


def test_a_model_without_inputs(capsys, folder):
    (folder / "graph.json").write_text('{"weft": 1}', encoding="utf-8")
    refused(capsys, ["plan", "graph.json"], "the model has no input that could be encrypted")


def test_encrypted_inputs_are_in_the_first_line_and_the_json(capsys, folder):
    assert main(["ckks", "plan", "graph.json", "--range", "0:1"]) == 0
    line = "encrypted: x in [0, 1]; in the clear: the 3 parameters w, b, v"
    assert capsys.readouterr().out.splitlines()[0] == line
    assert main(["ckks", "plan", "graph.json", "--encrypted", "v"]) == 0
    line = "encrypted: v in [-1, 1] (the default range); in the clear: x, and the 2 parameters w, b"
    assert capsys.readouterr().out.splitlines()[0] == line
    assert main(["ckks", "plan", "graph.json", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert next(iter(data)) == "headline"
    assert data["headline"].startswith("encrypted: x in [-1, 1] (the default range); in the clear")
    assert data["encrypted"] == {"x": [-1.0, 1.0]}
    assert data["in_the_clear"] == ["w", "b", "v"]


def test_a_model_with_ambiguous_encrypted_inputs_is_refused(capsys, folder):
    graph = trace(ops.linear, (1, 16), (16, 16), names=["x", "w"])
    (folder / "graph.json").write_text(to_json(graph), encoding="utf-8")
    for more in ([], TOY):
        refused(
            capsys,
            ["plan", "graph.json", *more],
            "which input is encrypted? 2 are not known to be parameters: x, w",
            "hint: --encrypted x or --encrypted w",
        )
    assert main(["ckks", "plan", "graph.json", *TOY, "--encrypted", "w"]) == 0
    assert capsys.readouterr().out.startswith("encrypted: w in [-1, 1] (the default range); in the")


def test_bounds_are_printed_where_weights_are_given(capsys, folder):
    assert main(["ckks", "plan", "graph.json", "--weights", "weights.npz", *TOY]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-6].split()[:2] == ["value", "level"]
    assert [line.split()[0] for line in lines[-5:]] == [
        *("x", "convolution", "polynomial", "mean_dim", "linear")
    ]
    assert main(["ckks", "plan", "graph.json", "--weights", "weights.npz", *TOY, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["bounds"]
    assert data["x"]["high"] == 1
    assert 0 < data["linear"]["error"] < 1e-6
    given = arrays() | {"v": np.full((4, 10), 1e4)}
    del given["x"]
    np.savez("large.npz", **given)
    args = ["plan", "graph.json", "--weights", "large.npz", *TOY]
    assert main(["ckks", *args]) == 2
    error = capsys.readouterr().err
    assert "layer linear: values up to " in error
    assert "hint: first_bits=" in error
    assert main(["ckks", *args, "--first-bits", "60"]) == 0
    assert main(["ckks", *args, "--depth", "5"]) == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--range", "a"], "--range a: expected R, LOW:HIGH, NAME=R or NAME=LOW:HIGH"),
        (["--range", "1", "--range", "2"], "--range 1: with several ranges, each needs a NAME="),
        (["--range", "w=1"], "a range is declared for w, which is not encrypted"),
        (
            ["--range", "2:1"],
            "the range of x is (2.0, 1.0): expected r for [-r, r], or (low, high)",
        ),
        (["--first-bits", "70"], "--first-bits 70: a prime has 20 to 60 bits"),
        (["--tolerance", "0"], "tolerance is 0.0; it must be above 0"),
    ],
)
def test_ranges_and_bits_that_are_refused(capsys, folder, more, message):
    assert main(["ckks", "plan", "graph.json", *TOY, *more]) == 2
    assert without_help(capsys.readouterr().err)[0] == f"weft ckks plan: {message}"


def test_an_answer_that_is_further_off_than_expected_fails(capsys, folder, monkeypatch):
    from weft.cli import ckks_commands

    true = ckks_commands._expected

    def wrong(graph, given):
        return {name: value + 1e-3 for name, value in true(graph, given).items()}

    monkeypatch.setattr(ckks_commands, "_expected", wrong)
    assert run_toy("--on", "simulator") == 2
    error = capsys.readouterr().err
    assert "output linear is 1.0e-03 from the answer in the clear; " in error
    assert "hint: do not use the answer: this is a bug of Weft" in error


@pytest.fixture
def machine(tmp_path):
    """A machine on which every operation of levels 0 to 3 takes a second, in a toy ring."""
    path = tmp_path / "machine.toml"
    OperationTimes(256, *([(1.0,) * 4] * len(ROWS))).added_to(Machine(name="slow")).save(path)
    return str(path)


def test_seconds_where_they_were_measured(capsys, folder, machine):
    more = [*TOY, "--machine", machine]
    assert main(["ckks", "plan", "graph.json", *more]) == 0
    assert capsys.readouterr().out.endswith(
        "seconds     not known for 1 layer: levels above 3 were not measured\n"
    )
    shallow = trace(ops.linear, (1, 16), (16, 16), names=["x", "w"], parameters=["w"])
    (folder / "graph.json").write_text(to_json(shallow), encoding="utf-8")
    assert main(["ckks", "plan", "graph.json", *more]) == 0
    cost = ckks.plan(shallow, 128).cost
    each = ("rotations", "plain_products", "products", "rescales", "additions", "plain_additions")
    total = sum(getattr(cost, name) for name in each)
    assert capsys.readouterr().out.endswith(f"seconds     {total:.1f} on one core\n")


@pytest.mark.parametrize("name", ["model:made", "model:GRAPH", "model.py:made", "./model.py:made"])
def test_a_model_may_be_a_function(capsys, folder, name, monkeypatch):
    (folder / "model.py").write_text(
        "from pathlib import Path\n"
        "from weft.lang.graph_json import from_json\n"
        "GRAPH = from_json(Path('graph.json').read_text())\n"
        "def made():\n    return GRAPH\n"
        "def wrong():\n    return 3\n"
    )
    monkeypatch.delitem(sys.modules, "model", raising=False)
    assert main(["ckks", "plan", name, *TOY, "--json"]) == 0
    plan = ckks.plan(graph_of(), 128)
    assert json.loads(capsys.readouterr().out)["total"]["rotations"] == plan.cost.rotations
    refused(
        capsys,
        ["plan", "model:wrong", *TOY],
        "model:wrong is not a graph, but of type int",
        "hint: weft.trace returns a graph",
    )
    assert str(folder) not in sys.path


MODELS = (
    "hint: a model is a graph's JSON, or module:function or file.py:function that returns a graph"
)


def test_models_that_are_refused(capsys, folder):
    refused(capsys, ["plan", "resnet20"], "there is no model resnet20", MODELS)
    refused(capsys, ["plan", "examples.resnet:r19"], "examples.resnet has no r19", MODELS)
    for name, why in (
        ("nothing_here:f", "No module named 'nothing_here'"),
        ("nothing.py:f", "there is no file nothing.py"),
    ):
        refused(capsys, ["plan", name], f"there is no model {name}: {why}", MODELS)
    refused(
        capsys,
        ["plan", "nothing.json"],
        "there is no file nothing.json",
        "hint: this folder has graph.json",
    )


@pytest.mark.parametrize(
    ("function", "shapes", "lines"),
    [
        (
            lambda x, w: ops.relu(ops.linear(x, w)),
            ((1, 8), (8, 4)),
            (
                "layer relu: relu cannot be done on ciphertexts",
                "hint: use a polynomial: weft.ckks.fit('relu', degree, low, high)",
            ),
        ),
        (
            lambda x: ops.max_pool(x, window=(2, 2)),
            ((1, 1, 8, 8),),
            ("layer max_pool: max_pool cannot be done on ciphertexts", "hint: use avg_pool"),
        ),
        (
            ops.softmax,
            ((1, 8),),
            (
                "layer softmax: softmax cannot be done on ciphertexts",
                "hint: ciphertexts have sums, products with plaintexts, products of two, and "
                "rotations",
            ),
        ),
    ],
)
def test_layers_that_ciphertexts_do_not_have(capsys, folder, function, shapes, lines):
    (folder / "graph.json").write_text(to_json(graph_of(function, shapes)), encoding="utf-8")
    refused(capsys, ["plan", "graph.json"], *lines)


@pytest.mark.parametrize(
    ("more", "lines"),
    [
        (
            ["--ring", "16384", "--depth", "2"],
            (
                "layer mean_dim: no level is left for it; the network takes 4 levels and N=16384 "
                "is given 2",
                "hint: N=16384 with depth=4 would fit at 128-bit security",
            ),
        ),
        (
            ["--ring", "16384", "--depth", "9"],
            (
                "N=16384 holds 438 bits at 128-bit security; depth 9 at 40 bits needs 470",
                "hint: N=32768 would fit, or depth 8",
            ),
        ),
        (
            ["--slots", "1000"],
            (
                "slots=1000 is not a power of two: a ring N has N/2 slots",
                "hint: slots=512 or slots=1024 would fit",
            ),
        ),
        (
            ["--slots", "128", "--ring", "256"],
            ("--ring and --slots cannot both be given", "hint: a ring N has N/2 slots"),
        ),
        (["--keys", "1"], ("5 rotation keys are the fewest that were found, 1 are allowed",)),
        (
            ["--encrypted", "y"],
            ("there is no input y to encrypt", "hint: inputs: ['x', 'w', 'b', 'v']"),
        ),
        (["--security", "none"], ("--security none needs a ring", "hint: give --ring")),
        (["--scale-bits", "0"], ("--scale-bits 0: a prime has 20 to 60 bits",)),
        (
            ["--ring", "32768", "--scale-bits", "55"],
            (
                "the first prime has 50 bits and the scale 55: there is no room for values at "
                "level 0",
            ),
        ),
        (["--memory", "nan"], ("--memory nan: expected a number of GiB above 0",)),
        (
            ["--ring", "256"],
            (
                "the security tables do not have N=256: they are for N=1024 to 65536",
                "hint: security=None checks nothing, for tests",
            ),
        ),
        (
            ["--ring", "8192", "--machine", "h200"],
            (
                "the machine has no operation times for the ring N=8192",
                "hint: measure them: weft ckks calibrate --ring 8192",
            ),
        ),
    ],
)
def test_plans_that_are_refused(capsys, folder, more, lines):
    refused(capsys, ["plan", "graph.json", *more], *lines)


# -- run ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("engine", "bound"), [("simulator", 1e-12), ("seal", 1e-5)])
def test_a_run_is_counted_and_compared(capsys, folder, engine, bound):
    assert run_toy("--on", engine, "--workers", "2", "-o", "out.npz") == 0
    seen = capsys.readouterr()
    plan = ckks.plan(graph_of(), slots=128)
    for name in ("rotations", "plain_products", "products", "rescales", "additions"):
        count = getattr(plan.cost, name)
        assert f"{name.replace('_', ' '):16}{count:>10,}{count:>10,}\n" in seen.out
    for placed in plan.layers:
        assert any(line.split()[:1] == [placed.name] for line in seen.out.splitlines())
    assert seen.out.endswith("wrote out.npz\n")
    given = arrays()
    y = np.pad(given["x"], ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(y, (3, 3), axis=(2, 3))
    y = np.einsum("bcyxuv,fcuv->bfyx", windows, given["w"]) + given["b"][:, None, None]
    wanted = RELU(y).mean((2, 3)) @ given["v"]
    with np.load("out.npz", allow_pickle=False) as file:
        assert file.files == ["linear"]
        assert np.abs(file["linear"] - wanted).max() < bound
    told = "making keys …" in seen.err
    assert told == (engine == "seal")
    assert {file.name for file in folder.iterdir()} == {
        *("graph.json", "weights.npz", "x.npy", "out.npz")
    }


def test_a_run_as_json(capsys, folder, machine):
    assert run_toy("--on", "simulator", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["errors"]["linear"] < 1e-12
    assert all(layer["predicted"] == layer["measured"] for layer in data["layers"])
    assert np.shape(data["outputs"]["linear"]) == (1, 10)


def test_counts_that_differ_are_reported(capsys, folder, monkeypatch):
    """The output is written; nothing else would show it, since the values are right."""
    planned = ckks.plan(graph_of(), slots=128)
    first, *rest = planned.layers
    wrong = replace(first, cost=replace(first.cost, rescales=first.cost.rescales + 1))
    monkeypatch.setattr(
        "weft.cli.ckks_commands.plan", lambda *_, **__: replace(planned, layers=(wrong, *rest))
    )
    assert run_toy("--on", "simulator", "-o", "out.npz") == 2
    assert capsys.readouterr().err.endswith(
        "weft ckks run: layer convolution: the counted operations differ from the predicted ones\n"
        "hint: this is a bug of Weft; the result is not affected\n"
    )
    assert (folder / "out.npz").exists()


@pytest.fixture
def no_keys(monkeypatch):
    """No key may be made."""

    def refuse(*_):
        pytest.fail("keys were made")

    monkeypatch.setattr("weft.cli.ckks_commands.Seal", refuse)


def refused_run(capsys, args, *lines):
    """A refused command may have printed progress before, to the error stream."""
    assert run_toy(*args) == 2
    seen = capsys.readouterr()
    assert not seen.out
    assert "Traceback" not in seen.err
    assert without_help(seen.err)[-len(lines) :] == [f"weft ckks run: {lines[0]}", *lines[1:]]


@pytest.mark.usefixtures("no_keys")
def test_values_out_of_range_are_refused_before_there_are_keys(capsys, folder):
    np.save("x.npy", np.full((1, 3, 8, 8), 100.0))
    assert run_toy() == 2
    said = capsys.readouterr().err
    assert "input x: the value 100 is outside of its declared range [-1, 1]\nhint: " in said
    assert run_toy("--range", "100") == 2
    said = capsys.readouterr().err
    assert "weft ckks run: polynomial: the value " in said
    assert " is outside of [-4, 4], where relu fits\nhint: " in said


@pytest.mark.usefixtures("no_keys")
def test_weights_that_are_refused(capsys, folder):
    def saved(**changed):
        given = arrays() | changed
        np.savez("weights.npz", **{k: v for k, v in given.items() if v is not None})

    saved(b=None, v=None)
    refused_run(capsys, [], "weights.npz has no array for b, v", "hint: it has 2 arrays: x, w")
    saved(w=np.ones((4, 3, 3, 2)))
    refused_run(capsys, [], "w has shape [4, 3, 3, 3], but its array [4, 3, 3, 2]")
    saved(b=np.array([None] * 4))
    refused_run(capsys, [], "b: expected an array of real numbers, got object")
    (folder / "weights.npz").write_bytes(b"nothing")
    refused_run(
        capsys, [], "weights.npz is not a valid .npz file of numbers: File is not a zip file"
    )


@pytest.mark.usefixtures("no_keys")
def test_inputs_that_are_refused(capsys, folder):
    hint = "hint: its first inputs are x, w, b, v"
    for text in ("y=x.npy", "x.npy"):
        assert run_toy(image=text) == 2
        message = f"--input {text}: expected NAME=FILE.npy, where NAME is an input of the model"
        assert capsys.readouterr().err.splitlines() == [f"weft ckks run: {message}", hint]
    refused(
        capsys,
        ["run", "graph.json"],
        "nothing is encrypted: name an encrypted input with --input",
        "hint: --input x=x.npy",
    )
    refused(
        capsys,
        ["run", "graph.json", "-i", "x=x.npy"],
        "the model has 3 inputs that are not encrypted, from w on",
        "hint: give --weights weights.npz, which numpy.savez writes",
    )
    np.save("x.npy", np.zeros((3, 8, 8)))
    refused_run(capsys, [], "x has shape [1, 3, 8, 8], but its array [3, 8, 8]")
    np.save("x.npy", np.array([None]))
    refused_run(capsys, [], "x has shape [1, 3, 8, 8], but its array [1]")
    (folder / "x.npy").write_bytes(b"nothing at all")
    assert run_toy() == 2
    assert "weft ckks run: x.npy is not a valid .npy file of numbers: " in capsys.readouterr().err


@pytest.mark.usefixtures("no_keys")
def test_runs_that_are_refused(capsys, folder, monkeypatch):
    args = ["run", "graph.json", "--weights", "weights.npz", "-i", "x=x.npy"]
    refused(
        capsys,
        [*args, "--ring", "8192"],
        "layer mean_dim: no level is left for it; the network takes 4 levels and N=8192 is given 2",
        "hint: N=16384 with depth=4 would fit at 128-bit security",
    )
    refused(
        capsys,
        [*args, "--ring", "2048"],
        "N=2048 holds 54 bits at 128-bit security; depth 4 at 40 bits needs 270",
        "hint: N=16384 would fit",
    )
    refused(capsys, [*args, "--workers", "0"], "--workers 0: at least 1 is needed")
    refused(capsys, [*args, "-o", "out.txt"], "cannot write out.txt: its name does not end in .npz")
    refused(
        capsys,
        [*args, "-o", "no/out.npz"],
        "cannot write no/out.npz: there is no folder no",
        "hint: create it first: mkdir -p no",
    )
    monkeypatch.setattr("weft.cli.ckks_commands.memory", lambda: 2.0**20)
    keys = len(ckks.plan(graph_of(), 128).cost.keys)
    refused_run(
        capsys,
        [],
        f"{keys} rotation keys and one for products, 3 MiB, do not fit the 1 MiB of this host",
        "hint: give --memory 0.000488, in GiB",
    )


# -- calibrate ------------------------------------------------------------------------------------


def test_times_are_measured_into_a_machine(capsys, tmp_path):
    path = tmp_path / "host.toml"
    Machine(flops={"float32": 1e9}, name="mine").save(path)
    args = ["ckks", "calibrate", "--ring", "8192", "--repeats", "1", "-o", str(path)]
    assert main(args) == 0
    seen = capsys.readouterr()
    assert seen.out.startswith("N=8192, milliseconds at level        1        2\nrotation ")
    assert seen.out.endswith(f"wrote {path}\n")
    machine = Machine.load(path)
    times = OperationTimes.of(machine, 8192)
    assert (machine.name, machine.flops["float32"], times.depth) == ("mine", 1e9, 2)
    assert all(each > 0 for each in times.rotation)
    assert main([*args, "--depth", "1", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    again = OperationTimes.of(Machine.load(path), 8192)
    assert (data["depth"], data["rotation"]) == (1, list(again.rotation))


def test_a_machine_that_is_new(capsys, tmp_path):
    path = tmp_path / "new.toml"
    args = ["ckks", "calibrate", "--ring", "8192", "--depth", "0", "--repeats", "1"]
    assert main([*args, "-o", str(path)]) == 0
    assert Machine.load(path).name.startswith("this host")


def test_calibrations_that_are_refused(capsys):
    refused(
        capsys,
        ["calibrate", "--ring", "4096"],
        "N=4096 has no room for a level at 128-bit security",
        "hint: --ring 8192",
    )
    refused(
        capsys,
        ["calibrate", "--ring", "8192", "-o", "no/host.toml"],
        "cannot write no/host.toml: there is no folder no",
        "hint: create it first: mkdir -p no",
    )


def test_without_numpy(capsys, monkeypatch, folder):
    monkeypatch.delitem(sys.modules, "weft.cli.ckks_commands", raising=False)
    monkeypatch.setitem(sys.modules, "weft.ckks.calibrate", None)
    assert main(["ckks", "plan", "graph.json"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("weft ckks plan: weft ckks needs NumPy: import of weft.ckks")
    assert lines[1] == "hint: pip install 'weft[ckks]'"

"""The command as a whole: the overview, misspelt words, what is said of every kind of error."""

import errno
import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from weft import trace
from weft.cli import doctor, main, parser
from weft.cli.main import EXTRAS, explain_error
from weft.errors import WeftError
from weft.lang.graph_json import to_json

MESH = '@m = <["x"=2]>'


def refused(capsys, *words):
    """The message for a command line that argparse refuses."""
    with pytest.raises(SystemExit) as left:
        main(list(words))
    assert left.value.code == 2
    seen = capsys.readouterr()
    assert not seen.out
    return seen.err


def leaves():
    root = parser.parser_with(parser.command_modules())
    return {path: one for path, one in parser.walk(root) if not parser.subcommands(one)}


# -- the overview ---------------------------------------------------------------------------------


def test_alone_it_prints_an_overview(capsys):
    assert main([]) == 0
    text = capsys.readouterr().out
    for title, group in parser.GROUPS.items():
        assert f"\n{title}:\n  {next(iter(group))}" in text
        assert all(f"\n  {name} " in text for name in group)
    assert "usage:" not in text
    for words in (["--help"], ["-h"], ["help"]):
        with pytest.raises(SystemExit) as left:
            main(words)
        assert left.value.code == 0
        assert capsys.readouterr().out == text


@pytest.mark.parametrize("name", ["store", "ckks", "ttmesh"])
def test_a_group_alone_prints_its_help(capsys, name):
    assert main([name]) == 0
    assert capsys.readouterr().out.startswith(f"usage: weft {name} ")


def test_help_of_a_command(capsys):
    with pytest.raises(SystemExit):
        main(["help", "store", "write"])
    assert capsys.readouterr().out.startswith("usage: weft store write ")


@pytest.mark.parametrize("path", leaves(), ids=" ".join)
def test_every_command_has_the_same_options(path):
    leaf = leaves()[path]
    known = set(leaf._option_string_actions)
    assert "--debug" in known
    assert path[1] == "completion" or "--json" in known
    assert ("-o" in known) <= ("--output" in known)
    assert leaf.description
    assert leaf.description.endswith(".")
    assert (leaf.epilog or "").startswith("examples:\n  ")


def test_one_command_loads_no_other():
    code = (
        "import sys; from weft.cli import main; main(['show', sys.argv[1]]); "
        "print(*[m for m in sys.modules if m in ('numpy', 'weft.cli.store', 'weft.cli.doctor')])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, MESH], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines()[-1] == ""


# -- misspelt -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["plna"], ["weft: unknown command plna", "hint: did you mean plan?"]),
        (["prop"], ["weft: unknown command prop", "hint: did you mean propagate?"]),
        (["--versoin"], ["weft: unknown option --versoin", "hint: did you mean --version?"]),
        (["-x"], ["weft: unknown option -x", "hint: see weft --help"]),
        (["store", "inf"], ["weft store: unknown command inf", "hint: did you mean info?"]),
        (["plan", "--jsn"], ["weft plan: unknown option --jsn", "hint: did you mean --json?"]),
        (
            ["search", "g.json", "--sed=3"],
            ["weft search: unknown option --sed", "hint: did you mean --seed?"],
        ),
        (
            ["plan", "g.json", "--mach", "h200"],
            ["weft plan: unknown option --mach", "hint: did you mean --machine?"],
        ),
        (
            ["plan", "a.json", "b.json"],
            [
                "weft plan: unknown argument b.json",
                "hint: see weft plan --help",
            ],
        ),
        (["plan"], ["weft plan: graph is missing", "hint: for example: weft plan graph.json"]),
        (
            ["ttmesh", "lower", "--shape", "8,8"],
            [
                "weft ttmesh lower: --mesh, --dims are missing",
                "hint: for example: weft ttmesh lower --shape 1,1,8192,10240 --mesh 8x4 --dims 3,2",
            ],
        ),
        (
            ["plan", "g.json", "--strategy", "costs"],
            ["weft plan: --strategy: invalid choice 'costs'", "hint: did you mean cost?"],
        ),
        (
            ["completion", "ksh"],
            ["weft completion: shell: invalid choice 'ksh'", "hint: did you mean zsh?"],
        ),
        (
            ["search", "g.json", "--seed", "z"],
            [
                "weft search: --seed: invalid integer 'z'",
                "hint: see weft search --help",
            ],
        ),
        (
            ["search", "g.json", "--seed"],
            [
                "weft search: --seed: expected one argument",
                "hint: see weft search --help",
            ],
        ),
        (
            ["ckks", "plan", "g.json", "--memory", "lots"],
            [
                "weft ckks plan: --memory: invalid amount of bytes 'lots': "
                "expected `512MiB` or `2GB`",
                "hint: see weft ckks plan --help",
            ],
        ),
        (
            ["store", "copy", "a", "b", "--chunks", "4,q"],
            [
                "weft store copy: --chunks: invalid size '4,q': expected `64` or `64,64`",
                "hint: see weft store copy --help",
            ],
        ),
    ],
    ids=" ".join,
)
def test_words_that_are_not_known(capsys, words, lines):
    assert refused(capsys, *words).splitlines() == lines


def test_without_anything_near_all_commands_are_named(capsys):
    text = refused(capsys, "zzz")
    names = text.removeprefix("weft: unknown command zzz\nhint: choose from ").split(", ")
    assert {name.strip() for name in names} == set(parser.command_modules())


# -- errors ---------------------------------------------------------------------------------------


@pytest.fixture
def failing(monkeypatch):
    """`weft show` raises what is given."""

    def arrange(error):
        def fail(*_):
            raise error

        monkeypatch.setattr("weft.cli.show._show_mesh", fail)

    return arrange


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (
            WeftError("3 shards do not fit 2 cells", hint="use a larger mesh"),
            2,
            ["3 shards do not fit 2 cells", "hint: use a larger mesh"],
        ),
        (WeftError("no"), 2, ["no", "hint: see weft show --help"]),
        (KeyboardInterrupt(), 130, ["interrupted"]),
        (
            TypeError("two\nlines"),
            1,
            [
                "this is a bug of Weft: TypeError: two",
                "hint: the same command with --debug shows the traceback; please report it",
            ],
        ),
        (
            AssertionError(),
            1,
            [
                "this is a bug of Weft: AssertionError",
                "hint: the same command with --debug shows the traceback; please report it",
            ],
        ),
        (
            MemoryError(),
            2,
            ["there is not enough memory", "hint: see weft doctor"],
        ),
        (
            ModuleNotFoundError("No module named 'tenseal'", name="tenseal.sealapi"),
            2,
            ["tenseal is needed and not installed", "hint: pip install 'weft[ckks]'"],
        ),
        (
            OSError(errno.EISDIR, "Is a directory", "a.json"),
            2,
            ["a.json is a folder, not a file", "hint: see weft show --help"],
        ),
        (
            OSError(errno.ENOTDIR, "Not a directory", "a/b"),
            2,
            ["a part of a/b is a file, not a folder", "hint: see weft show --help"],
        ),
        (
            OSError(errno.EACCES, "Permission denied", "a.json"),
            2,
            [
                "no permission to read or write a.json",
                "hint: check its permissions with ls -ld",
            ],
        ),
        (
            OSError(errno.EROFS, "Read-only file system", "a.json"),
            2,
            [
                "a.json is on a read-only file system",
                "hint: check its permissions with ls -ld",
            ],
        ),
        (
            OSError(errno.EEXIST, "File exists", "a"),
            2,
            ["a exists already", "hint: see weft show --help"],
        ),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            2,
            [
                "there is no space left to write a file",
                "hint: see weft doctor",
            ],
        ),
        (
            OSError(errno.EIO, "Input/output error", "disk"),
            2,
            ["disk: Input/output error", "hint: see weft show --help"],
        ),
        (OSError("odd"), 2, ["odd", "hint: see weft show --help"]),
    ],
    ids=lambda one: type(one).__name__,
)
def test_every_error_is_a_line_and_a_hint(capsys, failing, error, code, lines):
    failing(error)
    assert main(["show", MESH]) == code
    seen = capsys.readouterr()
    assert seen.err.splitlines() == [f"weft show: {lines[0]}", *lines[1:]]
    assert not seen.out


@pytest.mark.parametrize("error", [WeftError("no"), KeyError("x"), KeyboardInterrupt()])
@pytest.mark.parametrize("words", [["--debug", "show", MESH], ["show", MESH, "--debug"]])
def test_tracebacks_on_request(failing, error, words):
    failing(error)
    with pytest.raises(type(error)):
        main(words)


def test_files_that_are_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def hint(name):
        assert main(["diff", name, name]) == 2
        first, second = capsys.readouterr().err.splitlines()
        assert first == f"weft diff: there is no file {name}"
        return second

    assert hint("plan.json") == "hint: this folder has no similar file"
    assert hint("no/plan.json") == "hint: there is no folder no either"
    for name in ("first.json", "second.json", "notes.txt"):
        (tmp_path / name).write_text("{}")
    assert hint("frist.json") == "hint: did you mean first.json?"
    assert hint("first.jsn") == "hint: did you mean first.json?"
    assert hint("zzzzz.json") == "hint: this folder has first.json, second.json"
    for number in range(5):
        (tmp_path / f"{number}.json").write_text("{}")
    assert hint("zzzzz.json") == "hint: this folder has 0.json, 1.json, 2.json, 3.json ..."


def test_a_folder_that_may_not_be_looked_into(tmp_path, monkeypatch):
    monkeypatch.setattr("pathlib.Path.iterdir", lambda _: (_ for _ in ()).throw(PermissionError()))
    error = FileNotFoundError(errno.ENOENT, "No such file", str(tmp_path / "a.json"))
    assert explain_error(error, "weft plan").lines[1] == f"hint: no permission to list {tmp_path}"


def test_a_module_that_no_extra_brings_is_a_bug():
    error = ModuleNotFoundError("No module named 'nothing'", name="nothing")
    assert explain_error(error, "weft plan").code == 1


def test_an_interrupt_leaves_no_traceback():
    code = (
        "import signal, sys, time; from weft.cli import main, show\n"
        # A shell that starts what runs the tests in its background has it ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def wait(_):\n    print('ready', flush=True); time.sleep(600)\n"
        "show._show_mesh = wait; sys.exit(main(['show', sys.argv[1]]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, MESH], stdout=-1, stderr=-1, text=True
    ) as ran:
        assert ran.stdout.readline() == "ready\n"
        os.kill(ran.pid, signal.SIGINT)
        _, error = ran.communicate(timeout=300)
    assert (ran.returncode, error) == (130, "weft show: interrupted\n")


def test_an_exception_of_a_model_is_reported_as_the_models(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def made():\n    return {}['x']\n")
    (tmp_path / "broken.py").write_text("def made(:\n")
    (tmp_path / "graph.json").write_text(to_json(trace(lambda x: x, (2,))))
    assert main(["plan", "mine.py:made"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "weft plan: the model mine.py:made failed: KeyError: 'x'",
        "hint: the same command with --debug shows where",
    ]
    assert main(["plan", "broken.py:made"]) == 2
    assert "the model broken.py:made failed: SyntaxError" in capsys.readouterr().err
    assert main(["plan", "graph"]) == 2
    assert capsys.readouterr().err.endswith(" graph\nhint: did you mean graph.json?\n")
    assert main(["plan", "."]) == 2
    assert capsys.readouterr().err.startswith("weft plan: . is a folder, not a model\nhint: a mo")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            "{}",
            [
                "no.json is not a graph, a plan or a run",
                "hint: these have a field",
            ],
        ),
        (
            "[1]",
            [
                "no.json is not a graph, a plan or a run",
                "hint: these have a field",
            ],
        ),
        ("", ["invalid JSON: Expecting value: line 1 column 1", "hint: see weft show --help"]),
        ("\xff", ["invalid JSON: ", "hint: see weft show --help"]),
    ],
)
def test_unknown_files_are_refused(tmp_path, monkeypatch, capsys, text, lines):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no.json").write_text(text, encoding="utf-8")
    assert main(["show", "no.json"]) == 2
    found = capsys.readouterr().err.removeprefix("weft show: ").splitlines()
    assert len(found) == 2
    assert all(line.startswith(start) for line, start in zip(found, lines))


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            ["show", "8x16"],
            [
                "weft show: '8x16' is not a mesh or an operator, and there is no such file",
                """hint: a mesh in Shardy's notation: '@m = <["x"=2, "y"=4]>'""",
            ],
        ),
        (
            ["show", MESH, "-o", "folder.svg"],
            [
                "weft show: cannot write folder.svg: it is a folder",
                "hint: give the name of a file",
            ],
        ),
        (["plan", ""], ["weft plan: the name of the model is empty", "hint: a model is a graph's"]),
    ],
)
def test_meaningless_arguments_are_refused(tmp_path, monkeypatch, capsys, words, lines):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.svg").mkdir()
    assert main(words) == 2
    found = capsys.readouterr().err.splitlines()
    assert len(found) == len(lines)
    assert all(line.startswith(start) for line, start in zip(found, lines))


# -- extras ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "wanted", "is_met"),
    [("1.2", "", True), ("2.0", ">=1.2,<2", False), ("2.13.0+cpu", "==2.13.0", True)],
)
def test_versions(version, wanted, is_met):
    assert doctor.Need("package", wanted, version).is_met is is_met


def test_extras_that_include_each_other():
    lines = [
        "numpy>=2.0 ; extra == 'run'",
        "weft[run] ; extra == 'torch'",
        'torch (==2.13.0) ; extra == "torch"',
        "plain>=1",
    ]
    requirements = list(map(Requirement, lines))
    found = {name: need.wanted for name, need in doctor._needs("torch", requirements).items()}
    assert found == {"numpy": ">=2.0", "torch": "==2.13.0"}
    assert not doctor._needs("none", requirements)


def test_modules_say_which_extra_installs_them():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    for module, extra in EXTRAS.items():
        names = [Requirement(line).name.replace("-", "_") for line in extras[extra]]
        assert any(name.startswith(module) for name in names), f"{module} is not in {extra}"


def test_json_is_one_document(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph.json").write_text(to_json(trace(lambda x: x + 1, (4,))))
    for words in (
        ["show", MESH],
        ["show", MESH, "4", '<@m, [{"x"}]>'],
        ["show", "graph.json"],
        ["propagate", "graph.json"],
        ["plan", "graph.json", "--mesh", MESH, "-o", "plan.json"],
        ["show", "plan.json"],
        ["search", "graph.json", "--mesh", MESH],
        ["diff", "plan.json", "plan.json"],
        [
            "ttmesh",
            "lower",
            "--shape",
            "4,4",
            "--mesh",
            MESH.replace('"x"=2', '"r"=2, "c"=2'),
            "--dims",
            "0,1",
        ],
        ["doctor"],
    ):
        assert main([*words, "--json"]) == 0
        assert isinstance(json.loads(capsys.readouterr().out), dict)

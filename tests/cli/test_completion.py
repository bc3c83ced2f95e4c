"""`weft completion`: scripts that shells read, asked as if a person pressed Tab."""

import os
import shutil
import subprocess

import pytest

from weft.cli import main, parser

LINES = {
    "weft ": set(parser.command_modules()),
    "weft sto": {"store"},
    "weft store ": {"ls", "info", "verify", "write", "copy"},
    "weft store write s.npy a.zarr --codec b": {"blosc-lz4", "blosc-zstd"},
    "weft plan graph.json --st": {"--strategy", "--storage"},
    "weft plan graph.json --strategy ": {
        *("basic", "aggressive", "op_priority", "user_priority", "cost")
    },
    "weft plan --machine h": {"h200", "host"},
    "weft plan --json gr": {"graph.json"},
    "weft search graph.json --seed ": set(),
    "weft search graph.json --objectives time ": {"time", "peak_memory", "bytes"},
    "weft completion ": {"bash", "zsh", "fish", "tcsh", "powershell"},
    "weft ckks run m.json --on s": {"seal", "simulator"},
    "weft --debug doctor --j": {"--json"},
}
BASH = r"""
source ./script
words=($LINE)
[[ $LINE == *' ' ]] && words+=("")
COMP_WORDS=("${words[@]}") COMP_CWORD=$((${#words[@]} - 1)) COMPREPLY=()
_shtab_weft
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(capsys, tmp_path):
    def make(shell):
        assert main(["completion", shell]) == 0
        path = tmp_path / "script"
        path.write_text(capsys.readouterr().out, encoding="utf-8")
        (tmp_path / "graph.json").write_text("{}")
        return path

    return make


def ran(command, path, line):
    done = subprocess.run(
        command,
        cwd=path.parent,
        env={"LINE": line, "PATH": os.environ["PATH"], "HOME": str(path.parent)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return set(filter(None, done.stdout.splitlines()))


def test_bash(script):
    path = script("bash")
    subprocess.run(["bash", "-n", str(path)], check=True)
    for line, words in LINES.items():
        assert ran(["bash", "-c", BASH], path, line) == words, line
    assert ran(["bash", "-c", BASH], path, "weft plan --machine ") >= {"host", "graph.json"}
    assert ran(["bash", "-c", BASH], path, "weft completion bash ") == set()


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish(script):
    path = script("fish")
    ask = ["fish", "--no-config", "-c", 'source ./script; complete -C "$LINE" | cut -f 1']
    for line, words in LINES.items():
        if "--objectives" not in line:  # fish knows of one value for an option
            assert ran(ask, path, line) == words, line


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_reads_it(script):
    path = script("zsh")
    subprocess.run(["zsh", "-n", str(path)], check=True)
    load = "autoload -U compinit; compinit -u -D; source ./script; print $_comps[weft]"
    assert ran(["zsh", "-f", "-c", load], path, "") == {"_shtab_weft"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_option_is_in_every_script(script, shell):
    text = script(shell).read_text(encoding="utf-8")
    root = parser.parser_with(parser.command_modules())
    for path, one in parser.walk(root):
        for name in one._option_string_actions:
            bare = name.lstrip("-")
            wanted = name if shell != "fish" else f"-l {bare}" if "--" in name else f"-s {bare}"
            assert wanted in text, (path, name)
        assert path[-1] in text

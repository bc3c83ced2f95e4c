"""`weft ckks`: plan, run and measure networks on ciphertexts."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

from weft.cli.graphs import MODELS
from weft.cli.parser import Add, Commands, add_flag, add_group, add_list
from weft.cli.run import amount
from weft.errors import WeftError

EXAMPLES = """\
examples:
  weft ckks plan examples.resnet:resnet18 --ring 65536
  weft ckks plan graph.json --encrypted x --range 4 --keys 32 --json
  weft ckks calibrate --ring 32768 --depth 17 -o host.toml
  weft ckks plan examples.encrypted_resnet:network --keys 24 --machine host.toml
  weft ckks run model.py:build --weights weights.npz --input image=image.npy -o answer.npz
"""
SECURITY = ("128", "192", "256", "none")
TIMES = "a machine's TOML file, written by `weft ckks calibrate`: adds seconds"


def add_to(commands: Commands) -> None:
    """Add the subcommand, and its own subcommands."""
    summary = "plan and run networks on ciphertexts"
    about = "Plan networks on CKKS ciphertexts, to the exact rotation, and run them."
    group = add_group(commands, "ckks", summary, about, EXAMPLES)
    add = group("plan", run, "plan a network: a line for each layer, parameters, keys")
    add("model", help=MODELS)
    encrypted = "an input that is encrypted (default: the only input that is not a parameter)"
    add("--encrypted", action="append", metavar="NAME", help=encrypted)
    add("--weights", type=Path, help="an .npz file with all other inputs: checks the bounds")
    _add_parameters(add)
    text = "run a network on encrypted inputs, and compare with the result in the clear"
    add = group("run", run, text)
    add("model", help=MODELS)
    add("--weights", type=Path, help="an .npz file with all inputs that are not encrypted")
    encrypted = "an input that is encrypted"
    add("-i", "--input", action="append", default=[], metavar="NAME=FILE.npy", help=encrypted)
    add("-o", "--output", type=Path, help="write the decrypted outputs to an .npz")
    add("--workers", type=int, default=1, help="processes, one core each (default: 1)")
    backends = ("seal", "simulator")
    add("--on", choices=backends, default="seal", help="the back-end (default: seal)")
    _add_parameters(add)
    add = group(
        "calibrate", run, "measure the operations of SEAL on this host, to estimate seconds"
    )
    add("--ring", type=int, required=True, help="N, twice the slots")
    add("--depth", type=int, help="the highest level (default: the most at 128-bit security)")
    add("--repeats", type=int, default=3, help="repeats of each measurement (default: 3)")
    add("-o", "--output", type=Path, help="a machine's TOML file, to which the times are added")
    add_flag(add, "--json", "print JSON")


def _add_parameters(add: Add) -> None:
    add("--ring", type=int, help="N (default: the smallest that holds the depth)")
    add("--slots", type=int, help="N/2")
    ranges = "declared range of an encrypted input, R for -R:R (default: 1)"
    add_list(add, "--range", ranges, dest="ranges", metavar="[NAME=]R|LOW:HIGH")
    add("--depth", type=int, help="number of levels (default: as many as needed)")
    add("--keys", type=int, help="maximum number of rotation keys (default: unlimited)")
    memory = "maximum memory for rotation keys, as 8GiB, or in GiB (default: unlimited)"
    add("--memory", type=gib, metavar="AMOUNT", help=memory)
    add("--machine", help=TIMES)
    add("--scale-bits", type=int, default=40, help="bits of the scale (default: 40)")
    add(
        "--first-bits", type=int, default=50, help="bits of the first prime, up to 60 (default: 50)"
    )
    tolerance = (
        "largest expected error of an output, relative to its largest value (default: 0.001)"
    )
    add("--tolerance", type=float, default=1e-3, help=tolerance)
    security = "bits of security; none, for tests, checks nothing (default: 128)"
    add("--security", choices=SECURITY, default="128", help=security)
    add_flag(add, "--json", "print JSON")


def gib(text: str) -> float:
    """Return an amount of memory in GiB; a number alone is in GiB.

    >>> gib("8"), gib("512MiB")
    (8.0, 0.5)
    """
    try:
        return float(text)
    except ValueError:
        return amount(text) / 2**30


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    try:
        commands = import_module("weft.cli.ckks_commands")
    except ImportError as error:
        raise WeftError(
            f"weft ckks needs NumPy: {error}", hint="pip install 'weft[ckks]'"
        ) from None
    getattr(commands, f"{args.what}_command")(args)

"""`weft ckks`: plan, run and measure networks on ciphertexts."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.graphs import MODELS
from weft.cli.parser import examples_of, sentence
from weft.cli.run import amount
from weft.errors import WeftError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

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


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand, and its own subcommands."""
    parser = commands.add_parser(
        "ckks",
        help="plan and run networks on ciphertexts",
        description="Plan networks on CKKS ciphertexts, to the exact rotation, and run them.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    below = parser.add_subparsers(dest="what", metavar="WHAT")
    _add_plan(below)
    _add_run(below)
    _add_calibrate(below)


def _command(
    below: _SubParsersAction[argparse.ArgumentParser], name: str, summary: str
) -> argparse.ArgumentParser:
    """Add a subcommand with its examples."""
    raw = argparse.RawDescriptionHelpFormatter
    examples = examples_of(EXAMPLES, f"weft ckks {name}")
    return below.add_parser(
        name,
        help=summary,
        description=f"{sentence(summary)}.",
        epilog=examples,
        formatter_class=raw,
    )


def _add_plan(below: _SubParsersAction[argparse.ArgumentParser]) -> None:
    summary = "plan a network: a line for each layer, parameters, keys"
    parser = _command(below, "plan", summary)
    parser.add_argument("model", help=MODELS)
    parser.add_argument(
        "--encrypted",
        action="append",
        metavar="NAME",
        help="an input that is encrypted (default: the only input that is not a parameter)",
    )
    parser.add_argument(
        "--weights", type=Path, help="an .npz file with all other inputs: checks the bounds"
    )
    _add_parameters(parser)
    _finish(parser)


def _add_run(below: _SubParsersAction[argparse.ArgumentParser]) -> None:
    summary = "run a network on encrypted inputs, and compare with the result in the clear"
    parser = _command(below, "run", summary)
    parser.add_argument("model", help=MODELS)
    parser.add_argument(
        "--weights", type=Path, help="an .npz file with all inputs that are not encrypted"
    )
    parser.add_argument(
        *("-i", "--input"),
        action="append",
        default=[],
        metavar="NAME=FILE.npy",
        help="an input that is encrypted",
    )
    parser.add_argument("-o", "--output", type=Path, help="write the decrypted outputs to an .npz")
    parser.add_argument(
        "--workers", type=int, default=1, help="processes, one core each (default: 1)"
    )
    parser.add_argument(
        "--on", choices=("seal", "simulator"), default="seal", help="the back-end (default: seal)"
    )
    _add_parameters(parser)
    _finish(parser)


def _add_calibrate(below: _SubParsersAction[argparse.ArgumentParser]) -> None:
    summary = "measure the operations of SEAL on this host, to estimate seconds"
    parser = _command(below, "calibrate", summary)
    parser.add_argument("--ring", type=int, required=True, help="N, twice the slots")
    parser.add_argument(
        "--depth", type=int, help="the highest level (default: the most at 128-bit security)"
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="repeats of each measurement (default: 3)"
    )
    parser.add_argument(
        *("-o", "--output"), type=Path, help="a machine's TOML file, to which the times are added"
    )
    _finish(parser)


def _add_parameters(parser: argparse.ArgumentParser) -> None:
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--ring", type=int, help="N (default: the smallest that holds the depth)")
    size.add_argument("--slots", type=int, help="N/2")
    parser.add_argument(
        "--range",
        action="append",
        default=[],
        dest="ranges",
        metavar="[NAME=]R|LOW:HIGH",
        help="declared range of an encrypted input, R for -R:R (default: 1)",
    )
    parser.add_argument("--depth", type=int, help="number of levels (default: as many as needed)")
    parser.add_argument(
        "--keys", type=int, help="maximum number of rotation keys (default: unlimited)"
    )
    parser.add_argument(
        "--memory",
        type=gib,
        metavar="AMOUNT",
        help="maximum memory for rotation keys, as 8GiB, or in GiB (default: unlimited)",
    )
    parser.add_argument("--machine", help=TIMES)
    parser.add_argument(
        "--scale-bits", type=int, default=40, help="bits of the scale (default: 40)"
    )
    parser.add_argument(
        "--first-bits", type=int, default=50, help="bits of the first prime, up to 60 (default: 50)"
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-3,
        help="largest expected error of an output, relative to its largest value (default: 0.001)",
    )
    parser.add_argument(
        "--security",
        choices=SECURITY,
        default="128",
        help="bits of security; none, for tests, checks nothing (default: 128)",
    )


def gib(text: str) -> float:
    """Return an amount of memory in GiB; a number alone is in GiB.

    >>> gib("8"), gib("512MiB")
    (8.0, 0.5)
    """
    try:
        return float(text)
    except ValueError:
        return amount(text) / 2**30


def _finish(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Run the subcommand."""
    getattr(_commands(), f"{args.what}_command")(args)


def _commands() -> Any:
    try:
        return import_module("weft.cli.ckks_commands")
    except ImportError as error:
        raise WeftError(
            f"weft ckks needs NumPy: {error}", hint="pip install 'weft[ckks]'"
        ) from None

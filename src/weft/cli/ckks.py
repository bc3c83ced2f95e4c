"""`weft ckks`: networks on ciphertexts, planned, run and measured."""

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
TIMED = "for seconds: a machine's TOML file, as `weft ckks calibrate` writes it"


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand, and those below it."""
    parser = commands.add_parser(
        "ckks",
        help="plan and run networks on ciphertexts",
        description="Networks on CKKS ciphertexts: what they take, to the rotation, and how they "
        "run.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    below = parser.add_subparsers(dest="what", metavar="WHAT")
    _add_plan(below)
    _add_run(below)
    _add_calibrate(below)


def _command(
    below: _SubParsersAction[argparse.ArgumentParser], name: str, told: str
) -> argparse.ArgumentParser:
    """A command below, with the examples that are its own."""
    raw = argparse.RawDescriptionHelpFormatter
    examples = examples_of(EXAMPLES, f"weft ckks {name}")
    return below.add_parser(
        name, help=told, description=f"{sentence(told)}.", epilog=examples, formatter_class=raw
    )


def _add_plan(below: _SubParsersAction[argparse.ArgumentParser]) -> None:
    told = "what a network takes: a line for each layer, parameters, keys"
    parser = _command(below, "plan", told)
    parser.add_argument("model", help=MODELS)
    parser.add_argument(
        "--encrypted",
        action="append",
        metavar="NAME",
        help="an input that is encrypted (default: the only input that is not a parameter)",
    )
    parser.add_argument(
        "--weights", type=Path, help="an .npz file with all other inputs: bounds are checked"
    )
    _add_parameters(parser)
    _finish(parser)


def _add_run(below: _SubParsersAction[argparse.ArgumentParser]) -> None:
    told = "run a network on encrypted inputs, and compare with what it gives unencrypted"
    parser = _command(below, "run", told)
    parser.add_argument("model", help=MODELS)
    parser.add_argument("--weights", type=Path, help="an .npz file with all that is not encrypted")
    parser.add_argument(
        *("-i", "--input"),
        action="append",
        default=[],
        metavar="NAME=FILE.npy",
        help="an input that is encrypted",
    )
    parser.add_argument("-o", "--output", type=Path, help="write the decrypted outputs to an .npz")
    parser.add_argument("--workers", type=int, default=1, help="processes, one core each (1)")
    parser.add_argument("--on", choices=("seal", "simulator"), default="seal", help="what runs it")
    _add_parameters(parser)
    _finish(parser)


def _add_calibrate(below: _SubParsersAction[argparse.ArgumentParser]) -> None:
    told = "measure the operations of SEAL on this host, for the seconds of plans"
    parser = _command(below, "calibrate", told)
    parser.add_argument("--ring", type=int, required=True, help="N, twice the slots")
    parser.add_argument("--depth", type=int, help="the highest level (the most at 128 bits)")
    parser.add_argument("--repeats", type=int, default=3, help="how often each is measured")
    parser.add_argument(
        *("-o", "--output"), type=Path, help="the TOML file of a machine that gets the times"
    )
    _finish(parser)


def _add_parameters(parser: argparse.ArgumentParser) -> None:
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--ring", type=int, help="N (the smallest that holds the depth)")
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
    parser.add_argument("--keys", type=int, help="rotation keys that there may be (any number)")
    parser.add_argument(
        "--memory", type=gib, metavar="AMOUNT", help="for rotation keys, as 8GiB; or in GiB (any)"
    )
    parser.add_argument("--machine", help=TIMED)
    parser.add_argument("--scale-bits", type=int, default=40, help="bits of the scale (40)")
    parser.add_argument(
        "--first-bits", type=int, default=50, help="bits of the first prime, up to 60 (50)"
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-3,
        help="largest expected error of an output, in parts of its largest value (0.001)",
    )
    parser.add_argument(
        "--security", choices=SECURITY, default="128", help="none checks nothing, for tests (128)"
    )


def gib(text: str) -> float:
    """An amount of memory in GiB, which a number alone is.

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
    """Run what is asked for."""
    _tools(args.what).run(args)


def _tools(what: str) -> Any:
    try:
        return import_module(f"weft.cli.ckks_{what}")
    except ImportError as error:
        raise WeftError(
            f"weft ckks needs NumPy: {error}", hint="pip install 'weft[ckks]'"
        ) from None

"""`weft ckks run`: a network on encrypted inputs, counted, and compared with it unencrypted."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.ckks.backend import Counters
from weft.ckks.clear import computed
from weft.ckks.inference import Ciphers, Outcome, check_ranges
from weft.ckks.inference import run as run_plan
from weft.ckks.links import Portable
from weft.ckks.parameters import Parameters
from weft.ckks.planner import Placed, Plan
from weft.ckks.seal import Seal
from weft.ckks.simulator import Simulator
from weft.ckks.table import seconds
from weft.cli.ckks_plan import MIB, disclosure, keys, parameters, planned
from weft.cli.files import check_file, print_json, read_inputs, read_weights, write_arrays
from weft.cli.graphs import read_model
from weft.draw import say
from weft.errors import WeftError
from weft.lang import Graph
from weft.plan.machines import memory
from weft.values import counted

COUNTED = ("rotations", "plain_products", "products", "rescales", "additions", "plain_additions")


def run(args: argparse.Namespace) -> None:
    """Check everything, make keys, run, compare; write only what is asked for."""
    _check(args)
    graph = read_model(args.model)
    arrays = _arrays(graph, args)
    found = planned(graph, args, [text.partition("=")[0] for text in args.input])
    fits = parameters(found, args)
    _tell(found.headline, f"{fits}", f"{keys(found, fits)}", "checking ranges …")
    check_ranges(found, arrays, fits)
    backend = _backend(found, fits, args)
    ran = _Watched(found, backend, quiet=args.json)
    begin = time.perf_counter()
    outcome = run_plan(found, arrays, backend, ran.watch, workers=args.workers)
    ran.finish()
    spent = time.perf_counter() - begin
    if args.output is not None:
        write_arrays(args.output, outcome.outputs)
    _report(args, found, outcome, ran.measured(), _wanted(graph, arrays), spent)


def _tell(*lines: str) -> None:
    print("\n".join(lines), file=sys.stderr, flush=True)


def _check(args: argparse.Namespace) -> None:
    """Refuse what needs no look into a file."""
    check_file(args.output)
    if args.workers < 1:
        raise WeftError(f"--workers {args.workers}: at least 1 is needed")
    if args.output is not None and args.output.suffix != ".npz":
        raise WeftError(f"cannot write {args.output}: its name does not end in .npz")


def _arrays(graph: Graph, args: argparse.Namespace) -> dict[str, NDArray[Any]]:
    values = {value.name: value for value in graph.inputs}
    if not args.input:
        data = [name for name in values if name not in graph.parameters]
        raise WeftError(
            "nothing is encrypted: state which input is, by --input",
            hint=" or ".join(f"--input {name}={name}.npy" for name in data[:4] or ["x"]),
        )
    found = read_inputs(args.input, values)
    rest = [value for name, value in values.items() if name not in found]
    if rest and args.weights is None:
        raise WeftError(
            f"the model has {counted(len(rest), 'input')} that are not encrypted, from "
            f"{rest[0].name} on",
            hint="give --weights weights.npz, which numpy.savez writes",
        )
    return found | read_weights(args.weights, rest) if rest else found


def _backend(found: Plan, fits: Parameters, args: argparse.Namespace) -> Portable:
    if args.on == "simulator":
        return Simulator(fits, found.cost.keys, found.needs_products)
    size, room = found.key_bytes(fits), memory()
    if size > room:
        raise WeftError(
            f"{keys(found, fits)}, do not fit the {room / MIB:,.0f} MiB of this host",
            hint=f"give --memory {room / 2**31:.3g}, in GiB",
        )
    begin = time.perf_counter()
    _tell("making keys …")
    made = Seal(fits, found.cost.keys, found.needs_products)
    _tell(f"keys were made in {time.perf_counter() - begin:.1f} s")
    return made


class _Watched:
    """A run that says what it did, a line for each layer."""

    def __init__(self, found: Plan, backend: Portable, quiet: bool) -> None:
        self.found, self.backend, self.quiet = found, backend, quiet
        self.rows: list[tuple[Placed, Counters, float]] = []
        self.open: tuple[Placed, Counters, float] | None = None
        self.wide = max(map(len, ("layer", *(placed.name for placed in found.layers))))

    def watch(self, placed: Placed, operands: Sequence[Ciphers]) -> None:
        """A layer begins: the one before has ended."""
        self.finish()
        if not self.rows and not self.quiet:
            heads = ["levels", "rotations", "products", "seconds"]
            heads += ["predicted"] * (self.found.times is not None)
            say(f"{'layer':{self.wide}}" + "".join(f"{each:>11}" for each in heads), sys.stdout)
        self.open = placed, self.backend.counters.copy(), time.perf_counter()

    def finish(self) -> None:
        """The layer that was open has ended."""
        if self.open is None:
            return
        placed, before, begin = self.open
        self.open = None
        self.rows.append((placed, self.backend.counters - before, time.perf_counter() - begin))
        if not self.quiet:
            say(self._line(*self.rows[-1]), sys.stdout)
            sys.stdout.flush()

    def _line(self, placed: Placed, counters: Counters, spent: float) -> str:
        foreseen = seconds(self.found, placed)
        cells = [
            f"{placed.start} > {placed.level}",
            f"{counters.rotations:,}",
            f"{counters.plain_products + counters.products:,}",
            f"{spent:.2f}",
            "" if foreseen is None else f"{foreseen:.2f}",
        ]
        return (f"{placed.name:{self.wide}}" + "".join(f"{each:>11}" for each in cells)).rstrip()

    def measured(self) -> list[dict[str, Any]]:
        """What each layer was predicted to take, and took."""
        return [
            {
                "name": placed.name,
                "predicted": {name: getattr(placed.cost, name) for name in COUNTED},
                "measured": {name: getattr(counters, name) for name in COUNTED},
                "seconds": spent,
            }
            for placed, counters, spent in self.rows
        ]


def _wanted(graph: Graph, arrays: Mapping[str, Any]) -> dict[str, NDArray[np.float64]]:
    """What the network gives where nothing is encrypted."""
    values = computed(graph, arrays)
    return {name: values[name] for name in graph.outputs}


def _report(
    args: argparse.Namespace,
    found: Plan,
    outcome: Outcome,
    layers: list[dict[str, Any]],
    wanted: Mapping[str, NDArray[np.float64]],
    spent: float,
) -> None:
    errors = {name: float(np.abs(outcome[name] - wanted[name]).max()) for name in wanted}
    views = found.network.views
    promised = {name: outcome.bounds.errors[views.get(name, name)] for name in wanted}
    if args.json:
        outputs = {name: outcome[name].tolist() for name in wanted}
        data = {"layers": layers, "seconds": spent, "errors": errors, "outputs": outputs}
        print_json(
            {**disclosure(found), **data, "promised": promised, "keys": len(found.cost.keys)}
        )
    else:
        say(f"\n{found.headline}\n\n{comparison(layers)}\n\n{spent:.1f} s on {args.on}", sys.stdout)
        for name, error in errors.items():
            say(answer(name, outcome[name], wanted[name], error, promised[name]), sys.stdout)
    if args.output is not None:
        say(f"wrote {args.output}", sys.stderr if args.json else sys.stdout)
    for name, error in errors.items():
        if not error <= promised[name]:
            raise WeftError(
                f"output {name} is {error:.1e} from the answer in the clear; {promised[name]:.1e} "
                "was expected at most",
                hint="do not use the answer: this is a bug of Weft",
            )
    wrong = [layer["name"] for layer in layers if layer["predicted"] != layer["measured"]]
    if wrong:
        raise WeftError(
            f"layer {wrong[0]}: what was counted is not what was predicted",
            hint="this is a bug of Weft; the result is not affected",
        )


def comparison(layers: Sequence[Mapping[str, Any]]) -> str:
    """What all layers were predicted to take, and took."""
    lines = [f"{'':16}{'predicted':>10}{'measured':>10}"]
    for name in COUNTED:
        sums = [sum(layer[kind][name] for layer in layers) for kind in ("predicted", "measured")]
        lines.append(f"{name.replace('_', ' '):16}{sums[0]:>10,}{sums[1]:>10,}")
    return "\n".join(lines)


def answer(
    name: str, made: NDArray[Any], wanted: NDArray[Any], error: float, promised: float
) -> str:
    """The first elements of an output, encrypted and not, and how far apart all are."""
    shown = [" ".join(f"{each:8.4f}" for each in row.ravel()[:8]) for row in (made, wanted)]
    more = " ..." if made.size > 8 else ""
    return (
        f"{name} {list(made.shape)}, at most {error:.1e} apart ({promised:.1e} expected)\n"
        f"  encrypted    {shown[0]}{more}\n  unencrypted  {shown[1]}{more}"
    )

"""The commands `weft ckks plan`, `run` and `calibrate`; they are imported when they are called."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.ckks.backends import Backend, Seal, Simulator
from weft.ckks.bounds import Bounds, check_bounds
from weft.ckks.calibrate import ROWS, OperationTimes, calibrate
from weft.ckks.network import Network, compute, encrypted_inputs
from weft.ckks.parameters import BITS, STANDARD, Parameters
from weft.ckks.plan import EncryptedPlan, Limits, PlannedLayer, depth_of, plan, value_levels
from weft.ckks.run import InferenceResult, Watch, check_ranges, run
from weft.ckks.slot_program import OperationCounts
from weft.cli.files import check_file, print_json, read_inputs, read_weights, write_arrays
from weft.cli.graphs import read_model
from weft.draw import say
from weft.errors import WeftError
from weft.lang import Graph
from weft.plan import Machine
from weft.plan.machines import find_machine, host_name, memory
from weft.values import counted

MIB = 2**20
COUNTED = ("rotations", "plain_products", "products", "rescales", "additions", "plain_additions")


# -- weft ckks plan -------------------------------------------------------------------------------


def plan_command(args: argparse.Namespace) -> None:
    """Plan the network and print its table, parameters and keys."""
    graph = read_model(args.model)
    planned = plan_for(graph, args, args.encrypted)
    deep = args.depth is None and _is_too_deep(planned, args)
    fits = None if deep else parameters(planned, args)
    bounds = _bounds(planned, fits, args)
    if args.json:
        print_json(describe(planned, fits, bounds))
    else:
        tail = "" if bounds is None else f"\n\n{bounds}"
        say(f"{planned}\n\n{needs(planned, fits, args)}{tail}", sys.stdout)


def _bounds(
    planned: EncryptedPlan, fits: Parameters | None, args: argparse.Namespace
) -> Bounds | None:
    """Return the bounds of all values if the weights are given."""
    if args.weights is None:
        return None
    if fits is None:
        raise WeftError("bounds need parameters, and none fit", hint="omit --weights")
    values = {value.name: value for value in planned.network.graph.inputs}
    weights = read_weights(args.weights, [values[name] for name in planned.clear])
    return check_bounds(planned, weights, fits)


def ranges(texts: Sequence[str]) -> dict[str, Limits] | Limits | None:
    """Read declared ranges: `4`, `0:255`, `image=-1:1`.

    >>> ranges(["image=0:255", "mask=1"]), ranges(["4"])
    ({'image': (0.0, 255.0), 'mask': 1.0}, 4.0)
    """
    by_name: dict[str, Limits] = {}
    for text in texts:
        name, _, limits = text.rpartition("=")
        try:
            low, colon, high = limits.partition(":")
            limit: Limits = (float(low), float(high)) if colon else float(low)
        except ValueError:
            raise WeftError(
                f"--range {text}: expected R, LOW:HIGH, NAME=R or NAME=LOW:HIGH"
            ) from None
        if not name and len(texts) > 1:
            raise WeftError(f"--range {text}: with several ranges, each needs a NAME=")
        if not name:
            return limit
        by_name[name] = limit
    return by_name or None


def plan_for(
    graph: Graph, args: argparse.Namespace, encrypted: Sequence[str] | None
) -> EncryptedPlan:
    """Return the plan for the given ring, or for the smallest that holds it."""
    _check_plan(graph, args)
    _check_stated(graph, encrypted)
    given = 2 * args.slots if args.slots is not None else args.ring
    limit = None if args.memory is None else int(args.memory * 2**30)
    planned = None
    for ring in [given] if given is not None else _rings(graph, args, encrypted):
        times = OperationTimes.of(find_machine(args.machine), ring) if args.machine else None
        planned = plan(
            graph,
            ring // 2,
            encrypted,
            ranges=ranges(args.ranges),
            keys=args.keys,
            times=times,
            memory=limit,
            tolerance=args.tolerance,
        )
        if given is None and _bits(planned.depth, args) <= STANDARD[security(args) or 128][ring]:
            break
    assert planned is not None
    return planned


def _check_plan(graph: Graph, args: argparse.Namespace) -> None:
    if args.ring is not None and args.slots is not None:
        raise WeftError("--ring and --slots cannot both be given", hint="a ring N has N/2 slots")
    if not graph.inputs:
        raise WeftError("the model has no input that could be encrypted")
    for name, bits in (("scale", args.scale_bits), ("first", args.first_bits)):
        if bits not in BITS:
            raise WeftError(f"--{name}-bits {bits}: a prime has {BITS[0]} to {BITS[-1]} bits")
    if args.memory is not None and not 0 < args.memory < inf:
        raise WeftError(f"--memory {args.memory:g}: expected a number of GiB above 0")
    if security(args) is None and args.ring is None and args.slots is None:
        raise WeftError("--security none needs a ring", hint="give --ring")


def _check_stated(graph: Graph, encrypted: Sequence[str] | None) -> None:
    """Refuse a model whose encrypted inputs are ambiguous."""
    try:
        encrypted_inputs(graph, encrypted)
    except WeftError as error:
        if encrypted is not None:
            raise
        data = [value.name for value in graph.inputs if value.name not in graph.parameters]
        names = data or [value.name for value in graph.inputs]
        hint = " or ".join(f"--encrypted {name}" for name in names[:4])
        raise WeftError(str(error), hint=hint) from None


def security(args: argparse.Namespace) -> int | None:
    """Return the requested bits of security."""
    return None if args.security == "none" else int(args.security)


def parameters(planned: EncryptedPlan, args: argparse.Namespace) -> Parameters:
    """Return the parameters of a plan, or of a given depth, which must hold it."""
    ring, bits, depth = 2 * planned.slots, security(args), args.depth
    levels = planned.depth if depth is None else depth
    if (
        depth is None and bits is not None
    ):  # limited to the ring, to name the layer where levels end
        room = STANDARD[bits].get(ring, 0) - int(args.first_bits) - 60
        most = room // int(args.scale_bits)
        levels = min(levels, most) if most > 0 else levels
    chosen = Parameters(ring, levels, args.scale_bits, args.first_bits, security=bits)
    planned.check(chosen)
    return chosen


def _rings(
    graph: Graph, args: argparse.Namespace, encrypted: Sequence[str] | None
) -> Iterator[int]:
    """Return the rings that may hold a network, the smallest first; the largest if none does."""
    network = Network.of(graph, encrypted).folded()
    least = depth_of(network, value_levels(network))
    table = STANDARD[security(args) or 128]
    yield from [ring for ring, bits in table.items() if _bits(least, args) <= bits] or [max(table)]


def _bits(depth: int, args: argparse.Namespace) -> int:
    levels = max(depth, args.depth or 0)
    return int(args.first_bits) + levels * int(args.scale_bits) + 60


def needs(planned: EncryptedPlan, fits: Parameters | None, args: argparse.Namespace) -> str:
    """Return the parameters, keys and seconds of a plan as text."""
    lines = [f"parameters  {fits or _too_deep(planned, args)}"]
    if fits is not None:
        lines.append(f"keys        {keys(planned, fits)}")
    if planned.times is not None:
        lines.append(f"seconds     {_expected_seconds(planned)}")
    return "\n".join(lines)


def keys(planned: EncryptedPlan, fits: Parameters) -> str:
    """Return the number of keys of a plan and their size."""
    kinds = counted(len(planned.cost.keys), "rotation key")
    kinds += " and one for products" * planned.needs_products
    return f"{kinds}, {planned.key_bytes(fits) / MIB:,.0f} MiB"


def _is_too_deep(planned: EncryptedPlan, args: argparse.Namespace) -> bool:
    bits = security(args)
    room = STANDARD[bits].get(2 * planned.slots) if bits is not None else None
    return room is not None and _bits(planned.depth, args) > room


def _too_deep(planned: EncryptedPlan, args: argparse.Namespace) -> str:
    """Return why there are no parameters, and which would fit."""
    ring, level, need = 2 * planned.slots, security(args) or 128, _bits(planned.depth, args)
    table = STANDARD[level]
    reason = f"depth {planned.depth} at {args.scale_bits} bits needs a modulus of {need} bits; "
    larger = [each for each, bits in table.items() if need <= bits]
    if larger:
        return reason + f"N={ring} does not hold it at {level}-bit security, N={larger[0]} would"
    most = (max(table.values()) - int(args.first_bits) - 60) // int(args.scale_bits)
    return (
        f"{reason}no ring of the standard holds it at {level}-bit security, N={max(table)} has "
        f"room for {max(table.values())}, depth {most}: it would need bootstrapping"
    )


def _expected_seconds(planned: EncryptedPlan) -> str:
    known = [layer.seconds(planned.times) for layer in planned.layers]
    missing = sum(each is None for each in known)
    if missing:
        assert planned.times is not None
        return (
            f"not known for {counted(missing, 'layer')}: levels above {planned.times.depth} were "
            "not measured"
        )
    return f"{sum(each or 0.0 for each in known):.1f} on one core"


def describe(
    planned: EncryptedPlan, fits: Parameters | None, bounds: Bounds | None = None
) -> dict[str, Any]:
    """Return a plan with its parameters and bounds as plain data."""
    data: dict[str, Any] = {**planned.describe(), "parameters": None}
    if bounds is not None:
        data["bounds"] = {
            name: {"low": each.low, "high": each.high, "error": bounds.errors[name]}
            for name, each in bounds.values.items()
        }
    if fits is not None:
        data |= {"parameters": str(fits), "key_bytes": planned.key_bytes(fits)}
        data |= {"ring": fits.ring, "modulus_bits": fits.modulus_bits, "security": fits.security}
    return data


# -- weft ckks run ---------------------------------------------------------------------------------


def run_command(args: argparse.Namespace) -> None:
    """Check everything, make keys, run, compare, and write the outputs if asked to."""
    _check_run(args)
    graph = read_model(args.model)
    arrays = _arrays(graph, args)
    planned = plan_for(graph, args, [text.partition("=")[0] for text in args.input])
    fits = parameters(planned, args)
    _log(planned.headline, f"{fits}", f"{keys(planned, fits)}", "checking ranges …")
    check_ranges(planned, arrays, fits)
    backend = _backend(planned, fits, args)
    watch = None if args.json else _layer_printer(planned)
    begin = time.perf_counter()
    result = run(planned, arrays, backend, watch, workers=args.workers)
    spent = time.perf_counter() - begin
    if args.output is not None:
        write_arrays(args.output, result.outputs)
    _report(args, planned, result, _expected(graph, arrays), spent)


def _log(*lines: str) -> None:
    print("\n".join(lines), file=sys.stderr, flush=True)


def _check_run(args: argparse.Namespace) -> None:
    """Refuse arguments that are wrong whatever the files contain."""
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
            "nothing is encrypted: name an encrypted input with --input",
            hint=" or ".join(f"--input {name}={name}.npy" for name in data[:4] or ["x"]),
        )
    arrays = read_inputs(args.input, values)
    rest = [value for name, value in values.items() if name not in arrays]
    if rest and args.weights is None:
        raise WeftError(
            f"the model has {counted(len(rest), 'input')} that are not encrypted, from "
            f"{rest[0].name} on",
            hint="give --weights weights.npz, which numpy.savez writes",
        )
    return arrays | read_weights(args.weights, rest) if rest else arrays


def _backend(planned: EncryptedPlan, fits: Parameters, args: argparse.Namespace) -> Backend:
    if args.on == "simulator":
        return Simulator(fits, planned.cost.keys, planned.needs_products)
    size, room = planned.key_bytes(fits), memory()
    if size > room:
        raise WeftError(
            f"{keys(planned, fits)}, do not fit the {room / MIB:,.0f} MiB of this host",
            hint=f"give --memory {room / 2**31:.3g}, in GiB",
        )
    begin = time.perf_counter()
    _log("making keys …")
    backend = Seal(fits, planned.cost.keys, planned.needs_products)
    _log(f"keys were made in {time.perf_counter() - begin:.1f} s")
    return backend


def _layer_printer(planned: EncryptedPlan) -> Watch:
    """Print the head of a table; return a function that prints the line of a layer."""
    wide = max(map(len, ("layer", *(layer.name for layer in planned.layers))))

    def write(name: str, *cells: str) -> None:
        line = f"{name:{wide}}" + "".join(f"{each:>11}" for each in cells)
        say(line.rstrip(), sys.stdout)
        sys.stdout.flush()

    def watch(layer: PlannedLayer, counters: OperationCounts, seconds: float) -> None:
        expected = layer.seconds(planned.times)
        products = counters.plain_products + counters.products
        cells = f"{counters.rotations:,}", f"{products:,}", f"{seconds:.2f}"
        predicted = "" if expected is None else f"{expected:.2f}"
        write(layer.name, f"{layer.start} > {layer.level}", *cells, predicted)

    heads = "levels", "rotations", "products", "seconds"
    write("layer", *heads, "predicted" if planned.times is not None else "")
    return watch


def _expected(graph: Graph, arrays: Mapping[str, Any]) -> dict[str, NDArray[np.float64]]:
    """Return the outputs of the network in the clear."""
    values = compute(graph, arrays)
    return {name: values[name] for name in graph.outputs}


def _report(
    args: argparse.Namespace,
    planned: EncryptedPlan,
    result: InferenceResult,
    wanted: Mapping[str, NDArray[np.float64]],
    spent: float,
) -> None:
    layers = [
        {
            "name": layer.name,
            "predicted": {name: getattr(layer.cost, name) for name in COUNTED},
            "measured": {name: getattr(measured.counters, name) for name in COUNTED},
            "seconds": seconds,
        }
        for layer, measured, seconds in zip(planned.layers, result.measured, result.seconds)
    ]
    errors = {name: float(np.abs(result[name] - wanted[name]).max()) for name in wanted}
    views = planned.network.views
    promised = {name: result.bounds.errors[views.get(name, name)] for name in wanted}
    if args.json:
        outputs = {name: result[name].tolist() for name in wanted}
        described = planned.describe()
        shown = {name: described[name] for name in ("headline", "encrypted", "in_the_clear")}
        data = {"layers": layers, "seconds": spent, "errors": errors, "outputs": outputs}
        print_json({**shown, **data, "promised": promised, "keys": len(planned.cost.keys)})
    else:
        say(
            f"\n{planned.headline}\n\n{comparison(layers)}\n\n{spent:.1f} s on {args.on}",
            sys.stdout,
        )
        for name, error in errors.items():
            say(answer(name, result[name], wanted[name], error, promised[name]), sys.stdout)
    if args.output is not None:
        say(f"wrote {args.output}", sys.stderr if args.json else sys.stdout)
    for name, error in errors.items():
        if not error <= promised[name]:
            raise WeftError(
                f"output {name} is {error:.1e} from the answer in the clear; at most "
                f"{promised[name]:.1e} was expected",
                hint="do not use the answer: this is a bug of Weft",
            )
    wrong = [layer["name"] for layer in layers if layer["predicted"] != layer["measured"]]
    if wrong:
        raise WeftError(
            f"layer {wrong[0]}: the counted operations differ from the predicted ones",
            hint="this is a bug of Weft; the result is not affected",
        )


def comparison(layers: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the predicted and the measured operations of all layers."""
    lines = [f"{'':16}{'predicted':>10}{'measured':>10}"]
    for name in COUNTED:
        sums = [sum(layer[kind][name] for layer in layers) for kind in ("predicted", "measured")]
        lines.append(f"{name.replace('_', ' '):16}{sums[0]:>10,}{sums[1]:>10,}")
    return "\n".join(lines)


def answer(
    name: str, result: NDArray[Any], wanted: NDArray[Any], error: float, promised: float
) -> str:
    """Return the first elements of an output, encrypted and not, and their largest difference."""
    shown = [" ".join(f"{each:8.4f}" for each in row.ravel()[:8]) for row in (result, wanted)]
    more = " ..." if result.size > 8 else ""
    return (
        f"{name} {list(result.shape)}, at most {error:.1e} apart ({promised:.1e} expected)\n"
        f"  encrypted    {shown[0]}{more}\n  unencrypted  {shown[1]}{more}"
    )


# -- weft ckks calibrate ---------------------------------------------------------------------------


def calibrate_command(args: argparse.Namespace) -> None:
    """Measure SEAL's operations, print them, and add them to a machine's file if asked to."""
    check_file(args.output)
    exists = args.output is not None and args.output.exists()
    machine = Machine.load(args.output) if exists else replace(Machine(), name=host_name(1))
    chosen = Parameters(args.ring, _deepest(args.ring) if args.depth is None else args.depth)
    print(f"measuring {chosen} …", file=sys.stderr, flush=True)
    times = calibrate(chosen, args.repeats)
    if args.json:
        rows = {name: list(getattr(times, name)) for name in ROWS}
        print_json({"ring": times.ring, "depth": times.depth, **rows})
    else:
        say(times_table(times), sys.stdout)
    if args.output is not None:
        times.added_to(machine).save(args.output)
        say(f"wrote {args.output}", sys.stderr if args.json else sys.stdout)


def _deepest(ring: int) -> int:
    """Return the most levels of 40 bits at 128-bit security."""
    if STANDARD[128].get(ring, 0) < 110:
        raise WeftError(f"N={ring} has no room for a level at 128-bit security", hint="--ring 8192")
    return (STANDARD[128][ring] - 110) // 40


def times_table(times: OperationTimes) -> str:
    """Return the milliseconds of each operation at the lowest, the middle and the highest level."""
    levels = sorted({min(1, times.depth), (times.depth + 1) // 2, times.depth})
    lines = [f"N={times.ring}, milliseconds at level" + "".join(f"{at:>9}" for at in levels)]
    wide = len(lines[0]) - 9 * len(levels)
    for name in ROWS:
        cells = "".join(f"{1e3 * getattr(times, name)[at]:9.2f}" for at in levels)
        lines.append(f"{name.replace('_', ' '):{wide}}{cells}")
    return "\n".join(lines)

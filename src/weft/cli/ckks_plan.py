"""`weft ckks plan`: a network's table, and the parameters and keys that it needs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from math import inf
from typing import Any

from weft.ckks.bounds import Bounds, check_bounds
from weft.ckks.calibrate import OperationTimes
from weft.ckks.cost import Cost
from weft.ckks.inputs import Limits, encrypted_inputs
from weft.ckks.levels import Levels
from weft.ckks.network import Network
from weft.ckks.parameters import BITS, RINGS, STANDARD, Parameters
from weft.ckks.planner import Plan, plan
from weft.ckks.table import ciphertext_bytes, mesh, seconds
from weft.cli.files import print_json, read_weights
from weft.cli.graphs import read_model
from weft.draw import say
from weft.errors import WeftError
from weft.lang import Graph
from weft.plan.machines import find_machine
from weft.values import counted

MIB = 2**20


def disclosure(found: Plan) -> dict[str, Any]:
    """What is encrypted and what is not, as plain data."""
    return {
        "headline": found.headline,
        "encrypted": {name: [each.low, each.high] for name, each in found.ranges.items()},
        "in_the_clear": list(found.clear),
    }


def run(args: argparse.Namespace) -> None:
    """Plan the network and print what it takes."""
    graph = read_model(args.model)
    found = planned(graph, args, args.encrypted)
    deep = args.depth is None and _is_too_deep(found, args)
    fits = None if deep else parameters(found, args)
    bounds = _bounds(found, fits, args)
    if args.json:
        print_json(describe(found, fits, bounds))
    else:
        tail = "" if bounds is None else f"\n\n{bounds}"
        say(f"{found}\n\n{needs(found, fits, args)}{tail}", sys.stdout)


def _bounds(found: Plan, fits: Parameters | None, args: argparse.Namespace) -> Bounds | None:
    """The bounds of all values, where the weights are given."""
    if args.weights is None:
        return None
    if fits is None:
        raise WeftError("bounds need parameters, and none fit", hint="leave --weights out")
    values = {value.name: value for value in found.network.graph.inputs}
    weights = read_weights(args.weights, [values[name] for name in found.clear])
    return check_bounds(found, weights, fits)


def ranges(texts: Sequence[str]) -> dict[str, Limits] | Limits | None:
    """Read declared ranges: `4`, `0:255`, `image=-1:1`.

    >>> ranges(["image=0:255", "mask=1"]), ranges(["4"])
    ({'image': (0.0, 255.0), 'mask': 1.0}, 4.0)
    """
    found: dict[str, Limits] = {}
    for text in texts:
        name, _, limits = text.rpartition("=")
        try:
            low, colon, high = limits.partition(":")
            made: Limits = (float(low), float(high)) if colon else float(low)
        except ValueError:
            raise WeftError(
                f"--range {text}: expected R, LOW:HIGH, NAME=R or NAME=LOW:HIGH"
            ) from None
        if not name and len(texts) > 1:
            raise WeftError(f"--range {text}: with several ranges, each needs a NAME=")
        if not name:
            return made
        found[name] = made
    return found or None


def planned(graph: Graph, args: argparse.Namespace, encrypted: Sequence[str] | None) -> Plan:
    """The plan for the ring that is given, or for the smallest that holds it."""
    _check(graph, args)
    _check_stated(graph, encrypted)
    given = 2 * args.slots if args.slots is not None else args.ring
    memory = None if args.memory is None else int(args.memory * 2**30)
    found = None
    for ring in [given] if given is not None else _rings(graph, args, encrypted):
        _check_ring(ring)
        times = OperationTimes.of(find_machine(args.machine), ring) if args.machine else None
        found = plan(
            graph,
            ring // 2,
            encrypted,
            ranges=ranges(args.ranges),
            keys=args.keys,
            times=times,
            memory=memory,
            tolerance=args.tolerance,
        )
        if given is None and _bits(found.depth, args) <= STANDARD[security(args) or 128][ring]:
            break
    assert found is not None
    return found


def _check(graph: Graph, args: argparse.Namespace) -> None:
    if not graph.inputs:
        raise WeftError("the model has no input that could be encrypted")
    if args.scale_bits not in BITS:
        raise WeftError(f"--scale-bits {args.scale_bits}: a prime has {BITS[0]} to {BITS[-1]} bits")
    if args.first_bits not in BITS:
        raise WeftError(f"--first-bits {args.first_bits}: a prime has {BITS[0]} to {BITS[-1]} bits")
    if args.memory is not None and not 0 < args.memory < inf:
        raise WeftError(f"--memory {args.memory:g}: it is a number of GiB above 0")
    if security(args) is None and args.ring is None and args.slots is None:
        raise WeftError("--security none goes with a ring", hint="give --ring")


def _check_stated(graph: Graph, encrypted: Sequence[str] | None) -> None:
    """Refuse a model of which it is not clear what is encrypted."""
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
    """The bits of security that are asked for."""
    return None if args.security == "none" else int(args.security)


def parameters(found: Plan, args: argparse.Namespace) -> Parameters:
    """Those of a plan; or of a depth, in which it must have room."""
    ring, bits, depth = 2 * found.slots, security(args), args.depth
    levels = found.depth if depth is None else depth
    if depth is None and bits is not None:  # what the ring holds, to say which layer it ends at
        room = STANDARD[bits].get(ring, 0) - int(args.first_bits) - 60
        most = room // int(args.scale_bits)
        levels = min(levels, most) if most > 0 else levels
    made = Parameters(ring, levels, args.scale_bits, args.first_bits, security=bits)
    found.check(made)
    return made


def _check_ring(ring: int) -> None:
    if ring not in RINGS:
        raise WeftError(
            f"N={ring} ({ring // 2} slots) is no power of two from {RINGS[0]} to {RINGS[-1]}"
        )


def _rings(
    graph: Graph, args: argparse.Namespace, encrypted: Sequence[str] | None
) -> Iterator[int]:
    """The rings that may hold a network, the smallest first; the largest, if none does."""
    least = Levels.of(Network.of(graph, encrypted).folded()).depth
    table = STANDARD[security(args) or 128]
    yield from [ring for ring, bits in table.items() if _bits(least, args) <= bits] or [max(table)]


def _bits(depth: int, args: argparse.Namespace) -> int:
    levels = max(depth, args.depth or 0)
    return int(args.first_bits) + levels * int(args.scale_bits) + 60


def needs(found: Plan, fits: Parameters | None, args: argparse.Namespace) -> str:
    """What a plan needs, in words."""
    lines = [f"parameters  {fits or _too_deep(found, args)}"]
    if fits is not None:
        lines.append(f"keys        {keys(found, fits)}")
    if found.times is not None:
        lines.append(f"seconds     {_foreseen(found)}")
    return "\n".join(lines)


def keys(found: Plan, fits: Parameters) -> str:
    """How many keys a plan needs, and what they take."""
    kinds = counted(len(found.cost.keys), "rotation key")
    kinds += " and one for products" * found.needs_products
    return f"{kinds}, {found.key_bytes(fits) / MIB:,.0f} MiB"


def _is_too_deep(found: Plan, args: argparse.Namespace) -> bool:
    bits = security(args)
    room = STANDARD[bits].get(2 * found.slots) if bits is not None else None
    return room is not None and _bits(found.depth, args) > room


def _too_deep(found: Plan, args: argparse.Namespace) -> str:
    """Why there are no parameters, and what would fit."""
    ring, level, need = 2 * found.slots, security(args) or 128, _bits(found.depth, args)
    table = STANDARD[level]
    said = f"depth {found.depth} at {args.scale_bits} bits needs a modulus of {need} bits; "
    larger = [each for each, bits in table.items() if need <= bits]
    if larger:
        return said + f"N={ring} does not hold it at {level}-bit security, N={larger[0]} would"
    most = (max(table.values()) - int(args.first_bits) - 60) // int(args.scale_bits)
    return (
        f"{said}no ring of the standard holds it at {level}-bit security, N={max(table)} has "
        f"room for {max(table.values())}, depth {most}: it would need bootstrapping"
    )


def _foreseen(found: Plan) -> str:
    known = [seconds(found, placed) for placed in found.layers]
    missing = sum(each is None for each in known)
    if missing:
        assert found.times is not None
        return (
            f"not known for {counted(missing, 'layer')}: levels above {found.times.depth} were "
            "not measured"
        )
    return f"{sum(each or 0.0 for each in known):.1f} on one core"


def counts(cost: Cost) -> dict[str, Any]:
    """What is counted, as plain data."""
    data = {each.name: getattr(cost, each.name) for each in fields(Cost) if each.name != "live"}
    return {**data, "keys": sorted(cost.keys)}


def describe(found: Plan, fits: Parameters | None, bounds: Bounds | None = None) -> dict[str, Any]:
    """A plan and what it needs, as plain data."""
    data: dict[str, Any] = {
        **disclosure(found),
        "slots": found.slots,
        "depth": found.depth,
        "layers": [
            {
                "name": placed.name,
                "operator": placed.layer.operator,
                "mesh": mesh(placed),
                "packing": str(placed.target),
                "level": placed.level,
                **counts(placed.cost),
                "bytes": ciphertext_bytes(found, placed),
                "seconds": seconds(found, placed),
            }
            for placed in found.layers
        ],
        "total": counts(found.cost),
        "parameters": None,
    }
    if bounds is not None:
        data["bounds"] = {
            name: {"low": each.low, "high": each.high, "error": bounds.errors[name]}
            for name, each in bounds.values.items()
        }
    if fits is not None:
        data |= {"parameters": str(fits), "key_bytes": found.key_bytes(fits)}
        data |= {"ring": fits.ring, "modulus_bits": fits.modulus_bits, "security": fits.security}
    return data

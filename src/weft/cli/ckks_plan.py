"""`weft ckks plan`: a network's table, and the parameters and keys that it needs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from math import inf
from typing import Any

from weft.ckks.calibrate import OperationTimes
from weft.ckks.cost import Cost
from weft.ckks.levels import Levels
from weft.ckks.network import Network
from weft.ckks.parameters import BITS, RINGS, STANDARD, Parameters
from weft.ckks.planner import Plan, plan
from weft.ckks.table import ciphertext_bytes, mesh, seconds
from weft.cli.files import print_json
from weft.cli.models import read_model
from weft.draw import say
from weft.errors import WeftError
from weft.lang import Graph
from weft.plan.machines import find_machine
from weft.values import counted

MIB = 2**20


def run(args: argparse.Namespace) -> None:
    """Plan the network and print what it takes."""
    graph = read_model(args.model)
    found = planned(graph, args, args.encrypted or ())
    deep = args.depth is None and _is_too_deep(found, args)
    fits = None if deep else parameters(found, args, args.depth)
    if args.json:
        print_json(describe(found, fits))
    else:
        say(f"{found}\n\n{needs(found, fits, args)}", sys.stdout)


def planned(graph: Graph, args: argparse.Namespace, encrypted: Sequence[str]) -> Plan:
    """The plan for the ring that is given, or for the smallest that holds it."""
    _check(graph, args)
    given = 2 * args.slots if args.slots is not None else args.ring
    memory = None if args.memory is None else int(args.memory * 2**30)
    found = None
    for ring in [given] if given is not None else _rings(graph, args, encrypted):
        _check_ring(ring)
        times = OperationTimes.of(find_machine(args.machine), ring) if args.machine else None
        found = plan(graph, ring // 2, encrypted, keys=args.keys, times=times, memory=memory)
        if given is None and _bits(found.depth, args) <= STANDARD[security(args) or 128][ring]:
            break
    assert found is not None
    return found


def _check(graph: Graph, args: argparse.Namespace) -> None:
    if not graph.inputs:
        raise WeftError("the model has no input that could be encrypted")
    if args.scale_bits not in BITS:
        raise WeftError(f"--scale-bits {args.scale_bits}: a prime has {BITS[0]} to {BITS[-1]} bits")
    if args.memory is not None and not 0 < args.memory < inf:
        raise WeftError(f"--memory {args.memory:g}: it is a number of GiB above 0")
    if security(args) is None and args.ring is None and args.slots is None:
        raise WeftError("--security none goes with a ring", hint="give --ring")


def security(args: argparse.Namespace) -> int | None:
    """The bits of security that are asked for."""
    return None if args.security == "none" else int(args.security)


def parameters(found: Plan, args: argparse.Namespace, depth: int | None = None) -> Parameters:
    """Those of a plan; or of a depth, in which it must have room."""
    ring, bits = 2 * found.slots, security(args)
    levels = found.depth if depth is None else depth
    if depth is None and bits is not None:  # what the ring holds, to say which layer it ends at
        most = (STANDARD[bits].get(ring, 0) - _bits(0, args)) // int(args.scale_bits)
        levels = min(levels, most) if most > 0 else levels
    made = Parameters(ring, levels, args.scale_bits, security=bits)
    found.check(made)
    return made


def _check_ring(ring: int) -> None:
    if ring not in RINGS:
        raise WeftError(
            f"N={ring} ({ring // 2} slots) is no power of two from {RINGS[0]} to {RINGS[-1]}"
        )


def _rings(graph: Graph, args: argparse.Namespace, encrypted: Sequence[str]) -> Iterator[int]:
    """The rings that may hold a network, the smallest first; the largest, if none does."""
    names = tuple(encrypted) or (graph.inputs[0].name,)
    least = Levels.of(Network.of(graph, names).folded()).depth
    table = STANDARD[security(args) or 128]
    yield from [ring for ring, bits in table.items() if _bits(least, args) <= bits] or [max(table)]


def _bits(depth: int, args: argparse.Namespace) -> int:
    return 50 + depth * int(args.scale_bits) + 60


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
    most = (max(table.values()) - 110) // int(args.scale_bits)
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


def describe(found: Plan, fits: Parameters | None) -> dict[str, Any]:
    """A plan and what it needs, as plain data."""
    data: dict[str, Any] = {
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
    if fits is not None:
        data |= {"parameters": str(fits), "key_bytes": found.key_bytes(fits)}
        data |= {"ring": fits.ring, "modulus_bits": fits.modulus_bits, "security": fits.security}
    return data

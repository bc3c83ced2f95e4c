"""A plan as a table: a line for each layer, and a total."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from weft.ckks.cost import Cost
from weft.ckks.network import Linear
from weft.ckks.packing import Packing

if TYPE_CHECKING:
    from weft.ckks.planner import Placed, Plan

HEADS = ("layer", "operator", "mesh", "ciphertexts", "rotations", "products", "levels", "keys")
UNKNOWN = "-"
"""In place of seconds at a level that nobody measured."""


def table(plan: Plan) -> str:
    """Return what is encrypted, then the layers and their costs; seconds where times are known."""
    rows = [[*HEADS, "MiB", *["seconds"] * (plan.times is not None)]]
    rows += [_row(plan, placed) for placed in plan.layers]
    cost = plan.cost
    total = ["total", "", "", "", f"{cost.rotations:,}", _products(cost), str(plan.depth)]
    total += [str(len(cost.keys)), ""]
    if plan.times is not None:
        total.append(_seconds([seconds(plan, placed) for placed in plan.layers]))
    rows.append(total)
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    lines = [_line(row, widths) for row in rows]
    rule = "-" * len(lines[0])
    return "\n".join([plan.headline, "", lines[0], rule, *lines[1:-1], rule, lines[-1]])


def ciphertext_bytes(plan: Plan, placed: Placed) -> int:
    """The bytes of the ciphertexts that go into a layer and come out of it, at their levels."""
    held = [(each.ciphertexts, at) for each, at in zip(placed.sources, placed.given)]
    held.append((placed.target.ciphertexts, placed.level))
    return sum(count * (level + 1) * 32 * plan.slots for count, level in held)


def seconds(plan: Plan, placed: Placed) -> float | None:
    """What a layer should take; None where its level was not measured."""
    if plan.times is None or placed.start > plan.times.depth:
        return None
    return plan.times.seconds(placed.cost, placed.start)


def mesh(placed: Placed) -> str:
    """The ciphertexts as the mesh of the layer: x out, y in, z rows.

    The index space of a convolution is cut by x along features, by y along channels, by z along
    rows; what a layer does not cut is loaded by all who need it.
    """
    if not isinstance(placed.layer, Linear):
        return ""
    z = max(_rows(packing) for packing in (*placed.sources, placed.target))
    x, y = placed.target.ciphertexts, sum(each.ciphertexts for each in placed.sources)
    return f"x={-(-x // z)} y={-(-y // z)} z={z}"


def _rows(packing: Packing) -> int:
    """Into how many blocks of rows a packing is cut."""
    if len(packing.shape) < 2:
        return 1
    first = sum(map(len, packing.radices[:-2]))
    last = first + len(packing.radices[-2])  # a dimension of size 1 has no digits
    return prod(packing.spec.grid[first:last])


def _row(plan: Plan, placed: Placed) -> list[str]:
    cost = placed.cost
    row = [placed.name, placed.layer.operator, mesh(placed)]
    row += [f"{cost.inputs} > {cost.outputs}", f"{cost.rotations:,}", _products(cost)]
    row += [f"{max(placed.given)} > {placed.level}", str(len(cost.keys))]
    row.append(f"{ciphertext_bytes(plan, placed) / 2**20:,.1f}")
    if plan.times is not None:
        row.append(_seconds([seconds(plan, placed)]))
    return row


def _seconds(given: Sequence[float | None]) -> str:
    known = [each for each in given if each is not None]
    return f"{sum(known):,.2f}" if len(known) == len(given) else UNKNOWN


def _products(cost: Cost) -> str:
    """Those with plaintexts, and those of ciphertexts."""
    return f"{cost.plain_products:,}" + (f" + {cost.products:,}" if cost.products else "")


def _line(row: list[str], widths: list[int]) -> str:
    left = [f"{cell:{width}}" for cell, width in zip(row[:3], widths)]
    right = [f"{cell:>{width}}" for cell, width in zip(row[3:], widths[3:])]
    return "  ".join([*left, *right]).rstrip()

"""`ckks_data`: a network on ciphertexts as what the page draws: layers, rotations and levels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from weft.lang.field import Field, parse_json

COUNTS = ("rotations", "plain_products", "products", "inputs", "outputs", "bytes")
TOTALS = ("rotations", "plain_products", "products")
MOST = 1 << 62


def ckks_data(given: Any) -> dict[str, Any]:
    """Return what the page draws of a `weft.ckks` plan, or of the JSON of `weft ckks plan`."""
    text = given if isinstance(given, str) else json.dumps(_described(given))
    root = parse_json(text, "the ciphertext plan")
    return {
        "headline": _text(root.at("headline")),
        "slots": _count(root.at("slots")),
        "depth": _count(root.at("depth")),
        "parameters": _text(root.at("parameters")),
        "key_bytes": _count(root.at("key_bytes")) if root.at("key_bytes").value else None,
        "layers": root.at("layers").items(_layer),
        "total": _counts(root.at("total"), TOTALS),
    }


def _described(given: Any) -> Mapping[str, Any]:
    """A plan as the command writes it: counts of each layer and of all."""
    if isinstance(given, Mapping):
        return given
    table: Any = import_module("weft.ckks.table")
    layers = [
        {
            "name": placed.name,
            "operator": placed.layer.operator,
            "mesh": table.mesh(placed),
            "packing": str(placed.target),
            "start": max(placed.given),
            "level": placed.level,
            **{key: getattr(placed.cost, key) for key in COUNTS[:-1]},
            "keys": sorted(placed.cost.keys),
            "bytes": table.ciphertext_bytes(given, placed),
            "seconds": table.seconds(given, placed),
        }
        for placed in given.layers
    ]
    total = {key: getattr(given.cost, key) for key in TOTALS}
    total["keys"] = sorted(given.cost.keys)
    return {
        "headline": given.headline,
        "slots": given.slots,
        "depth": given.depth,
        "layers": layers,
        "total": total,
    }


def _layer(field: Field) -> dict[str, Any]:
    start, seconds = field.at("start"), field.at("seconds")
    return {
        "name": _text(field.at("name")),
        "operator": _text(field.at("operator")),
        "mesh": _text(field.at("mesh")),
        "packing": _text(field.at("packing")),
        "start": None if start.value is None else _count(start),
        "level": _count(field.at("level")),
        "seconds": None if seconds.value is None else seconds.number(0),
        **_counts(field, COUNTS),
    }


def _counts(field: Field, keys: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {key: _count(field.at(key)) for key in keys}
    rotations = field.at("keys").value
    return found | {"keys": len(rotations) if isinstance(rotations, list) else 0}


def _count(field: Field) -> int:
    number = field.value
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MOST:
        field.fail("a number of things, 0 or more")
    return int(number)


def _text(field: Field) -> str:
    return "" if field.value in (None, "") else field.text()

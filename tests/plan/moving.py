"""A small simulator: NumPy shards, moved box by box as a plan's steps say, and counted."""

from itertools import product

import numpy as np

COMBINE = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "logsumexp": np.bitwise_xor,  # on integers this stands in: a monoid with the identity 0
}
LARGE = 1 << 40
IDENTITY = {
    "sum": 0,
    "prod": 1,
    "max": -LARGE,
    "min": LARGE,
    "and": -1,
    "or": 0,
    "logsumexp": 0,
}


def part_digits(spec):
    """Digits of the cell's coordinate that number its part, in mesh order, with their monoids."""
    found = [(spec.mesh.digit(axis), monoid) for axis, monoid in spec.partial.items()]
    return sorted(found, key=lambda each: (each[0].dim, -each[0].divisor))


def part_of(spec, cell):
    at = spec.mesh.coord(cell)
    return tuple(at[d.dim] // d.divisor % d.radix for d, _ in part_digits(spec))


def fold(values, monoids):
    """Combine values by number, the last place of the number first."""
    if not monoids:
        (value,) = values.values()
        return value
    inner = {}
    for number, value in sorted(values.items()):
        head = number[:-1]
        inner[head] = COMBINE[monoids[-1]](inner[head], value) if head in inner else value
    return fold(inner, monoids[:-1])


def make_parts(spec, shape, rng):
    """Random values for every part, and what they come to."""
    digits = part_digits(spec)
    numbers = product(*(range(d.radix) for d, _ in digits))
    parts = {number: np.asarray(rng.integers(0, 97, shape)) for number in numbers}
    return parts, fold(parts, [monoid for _, monoid in digits])


def cut(array, box, origin=None):
    """A view of a box, of rank 0 too."""
    return array[*box.slices(origin), ...]


def scatter(spec, shape, parts):
    """The shard of every device."""
    return {
        spec.mesh.device(cell): cut(parts[part_of(spec, cell)], spec.region(shape, cell))
        for cell in spec.mesh.cells()
    }


def gather(spec, shape, shards):
    """The array that shards come to; replicas must agree."""
    parts = {}
    for cell in spec.mesh.cells():
        box, shard = spec.region(shape, cell), shards[spec.mesh.device(cell)]
        assert shard.shape == box.shape
        part = parts.setdefault(part_of(spec, cell), (np.zeros(shape, int), np.zeros(shape, bool)))
        values, known = cut(part[0], box), cut(part[1], box)
        assert (values[known] == shard[known]).all(), "replicas differ"
        values[...], known[...] = shard, True
    assert all(known.all() for _, known in parts.values())
    monoids = [monoid for _, monoid in part_digits(spec)]
    return fold({number: values for number, (values, _) in parts.items()}, monoids)


def run_step(step, shards):
    """The shards after a step, and the bytes that each device received and sent."""
    held = {step.before.mesh.device(cell): cell for cell in step.before.mesh.cells()}
    after = step.after
    received = dict.fromkeys(step.devices, 0)
    sent = dict.fromkeys(step.devices, 0)
    pieces = {}
    for move in step.moves():
        origin = step.before.region(step.shape, held[move.sender]).start
        assert move.box in step.before.region(step.shape, held[move.sender])
        assert move.box, "an empty box is no move"
        piece = cut(shards[move.sender], move.box, origin)
        found = pieces.setdefault(move.receiver, {}).setdefault(move.box, {})
        assert move.part not in found, "a part came twice"
        found[move.part] = piece
        if move.sender != move.receiver:
            received[move.receiver] += piece.size * step.itemsize
            sent[move.sender] += piece.size * step.itemsize
    result = {}
    for cell in after.mesh.cells():
        device, box = after.mesh.device(cell), after.region(step.shape, cell)
        shard, filled = np.zeros(box.shape, int), np.zeros(box.shape, int)
        for piece, parts in pieces.get(device, {}).items():
            cut(shard, piece, box.start)[...] = fold(parts, step.monoids)
            cut(filled, piece, box.start)[...] += 1
            assert len(parts) == step.parts.size
        assert (filled == 1).all(), "the pieces of a cell tile its box"
        result[device] = mask(step, cell, shard)
    return result, tuple(received.values()), tuple(sent.values())


def mask(step, cell, shard):
    """What a cell holds once parts are made: values on the first cell, identities elsewhere."""
    if step.kind == "mask":
        for digit, monoid in step.parts.masked:
            if cell[digit.dim] // digit.divisor % digit.radix:
                shard = np.full(shard.shape, IDENTITY[monoid])
    return shard


def run(plan, shards):
    """The shards after all steps; every count of every step is compared with the prediction."""
    for step in plan.steps:
        shards, received, sent = run_step(step, shards)
        assert received == step.received
        assert sent == step.sent
    there = plan.dst.mesh
    return {device: shards[device] for device in map(there.device, there.cells())}

"""Who sends what in a transfer: every cell gets its box once, from cells that have it."""

from dataclasses import replace
from itertools import groupby, product

import numpy as np
from tests.program.enumerating import CellLayout, is_empty, lies_in, slices
from tests.program.random_layouts import random_cells, random_image, random_layout, random_shape
from tests.program.random_plans import COMBINED, gather
from tests.trials import trials

from weft.program import Cells, Combine, Route
from weft.program.count import received_elements
from weft.program.messages import messages
from weft.runtime.exchange import copy

ROUTES = trials(500)


def random_route(rng):
    """A transfer from an array that is held in full; inner parts are combined, outer ones stay."""
    cells = random_cells(rng)
    if rng.random() < 0.2:
        after = random_image(rng, cells)
        before = random_layout(rng, cells, after.shape)
    else:
        shape = random_shape(rng)
        before = random_layout(rng, cells, shape)
        after = random_layout(rng, cells, shape, overlap=True)
    count = int(rng.integers(0, len(before.parts) + 1))
    after = after.with_parts(before.parts[:count])
    runs = [
        Combine(monoid, tuple(digit for digit, _ in some))
        for monoid, some in groupby(before.parts[count:], key=lambda part: part[1])
    ]
    balance = None
    if rng.random() < 0.5:
        balance = tuple((float(n), 0.0) for n in rng.random(len(cells.shape)))
    return Route(before, after, tuple(runs), None, balance, bool(rng.random() < 0.3))


def random_routes():
    for seed in range(ROUTES):
        rng = np.random.default_rng(seed)
        yield rng, random_route(rng)


def random_shards(rng, layout):
    """An array of random integers, and the shards of its parts."""
    cells = CellLayout(layout)
    parts = [rng.integers(-9, 9, cells.shape) for _ in range(cells.part_count)]
    shards = [parts[n][slices(box)] for box, n in zip(cells.boxes, cells.labels)]
    for size, monoid in reversed(cells.parts):
        groups = [parts[n : n + size] for n in range(0, len(parts), size)]
        parts = [COMBINED[monoid].reduce(group) for group in groups]
    return parts[0], shards


def test_every_box_is_tiled_for_every_part():
    for _, route in random_routes():
        before, after = CellLayout(route.before), CellLayout(route.after)
        cells = route.before.cells
        ranks = {cells.device(rank): rank for rank in range(cells.size)}
        numbers = list(product(*(range(size_of(run)) for run in route.combine)))
        filled = [
            {part: np.zeros([b - a for a, b in box], int) for part in numbers}
            for box in after.boxes
        ]
        for message in messages(route):
            sender, receiver = ranks[message.sender], ranks[message.receiver]
            box = tuple(zip(message.box.start, message.box.stop))
            assert not is_empty(box)
            assert lies_in(box, before.boxes[sender])
            at = cells.coordinate(sender)
            assert message.part == tuple(number_of(run, at) for run in route.combine)
            kept = [digit for digit, _ in route.after.parts]
            assert [d.of(at) for d in kept] == [d.of(cells.coordinate(receiver)) for d in kept]
            filled[receiver][message.part][slices(box, after.boxes[receiver])] += 1
        assert all((each == 1).all() for parts in filled for each in parts.values())


def size_of(run):
    size = 1
    for digit in run.digits:
        size *= digit.radix
    return size


def number_of(run, at):
    number = 0
    for digit in run.digits:
        number = number * digit.radix + digit.of(at)
    return number


def test_a_cell_keeps_what_it_has():
    """What moves is what is counted without messages: every piece that a cell lacks, once."""
    for _, route in random_routes():
        cells = route.before.cells
        received = dict.fromkeys(range(cells.size), 0)
        ranks = {cells.device(rank): rank for rank in range(cells.size)}
        for message in messages(route):
            if message.sender != message.receiver:
                received[ranks[message.receiver]] += message.box.size
        count = 1
        for run in route.combine:
            count *= size_of(run)
        for rank, size in received.items():
            at = cells.coordinate(rank)
            assert size == received_elements(route.before, route.after, count, at)


def test_a_transfer_leaves_the_array_as_it_was():
    for rng, route in random_routes():
        array, shards = random_shards(rng, route.before)
        cells = route.before.cells
        devices = [cells.device(rank) for rank in range(cells.size)]
        made, counts = copy(np, dict(zip(devices, shards)), route)
        after = CellLayout(route.after)
        found = [made[device] for device in devices]
        assert [each.shape for each in found] == [
            tuple(b - a for a, b in box) for box in after.boxes
        ]
        assert sum(counts.sent.values()) == sum(counts.received.values())
        if after.is_held():
            np.testing.assert_array_equal(gather(found, route.after), array)


def test_balance_changes_senders_only():
    for _, route in random_routes():
        plain = messages(replace(route, balance=None, one_to_one=False))
        found = messages(route)
        assert [m[1:] for m in found] == [m[1:] for m in plain]
        if route.balance is not None:
            assert most_sent(found) <= most_sent(plain)


def most_sent(found):
    """The most elements that a device sends."""
    sent = {}
    for message in found:
        if message.sender != message.receiver:
            sent[message.sender] = sent.get(message.sender, 0) + message.box.size
    return max(sent.values(), default=0)


def test_parts_that_stay_may_have_other_digits_on_another_mesh():
    """On the other mesh the same devices are numbered the other way round."""
    rng = np.random.default_rng(0)
    before = random_parts((2, 2), None)
    after = random_parts((2, 2), (0, 2, 1, 3))
    (x, _), (y, _) = before.parts
    array, shards = random_shards(rng, before)
    route = Route(before, after, kept=((x, y), (y, x)))
    made, counts = copy(np, dict(enumerate(shards)), route)
    assert not counts.received
    turned = [made[device] for device in after.cells.devices]
    np.testing.assert_array_equal(gather(turned, after), array)


def random_parts(shape, devices):
    """An array that every cell has a part of."""
    rng = np.random.default_rng(1)
    while True:
        layout = random_layout(rng, Cells(shape, devices), (4,), ("sum",))
        if len(layout.parts) == 2:
            return layout

"""Lowering, counting, pricing and verifying programs: cost must not grow with the mesh."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from itertools import pairwise

from benchmarks.row import Row
from benchmarks.transformer import train_step_text
from weft import Graph, Plan, estimate, ops, propagate, trace
from weft.lang.trace import Symbol

MESHES = ((2, 4), (64, 64), (256, 256))


def run(seconds: float) -> Iterator[Row]:
    """All rows: a block on growing meshes, even and ragged, and a training step on a large one."""
    for shape in MESHES if seconds else MESHES[:1]:
        for name, more in (("even", 0), ("ragged", 3)):
            label = "x".join(map(str, shape))
            yield from measured(f"program/block-{name}-{label}", block(shape, more))
    if not seconds:
        return
    try:
        text = train_step_text(blocks=12, width=16384, heads=512, batch=256)
    except ImportError:
        return
    from weft.interop.stablehlo import read

    text = text.replace('["dp"=2, "tp"=4]', '["dp"=128, "tp"=128]')
    yield from measured("program/train-step-128x128", read(text))


def measured(name: str, graph: Graph) -> Iterator[Row]:
    """The seconds that each fold over the program of a graph takes, the first time."""
    plan = Plan.of(propagate(graph))
    times = [time.perf_counter()]
    program = plan.program
    times.append(time.perf_counter())
    _ = program.count.peak, program.count.received_by_cell
    times.append(time.perf_counter())
    _ = estimate(plan).seconds
    times.append(time.perf_counter())
    plan.verify()
    times.append(time.perf_counter())
    lower, count, price, verify = (end - begin for begin, end in pairwise(times))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield Row(
        name,
        lower + count + price,
        "s",
        1,
        more={
            "lower, s": lower,
            "count, s": count,
            "estimate, s": price,
            "verify, s": verify,
            "applications": float(len(graph.applications)),
            "resident, MB": memory,
        },
    )


def block(shape: tuple[int, int], more: int) -> Graph:
    """A transformer block with Megatron's shardings; with `more`, sizes that do not divide."""
    batch, length, width, heads, depth = 256 + more, 2048, 16384 + 512 * more, 512, 32

    def forward(
        x: Symbol, wq: Symbol, wk: Symbol, wv: Symbol, wo: Symbol, up: Symbol, down: Symbol
    ) -> Symbol:
        q, k, v = (ops.einsum("btd,dhs->bhts", x, w) for w in (wq, wk, wv))
        weights = ops.softmax(ops.einsum("bhts,bhus->bhtu", q, k))
        mixed = ops.einsum("bhtu,bhus->bhts", weights, v)
        x = x + ops.einsum("bhts,hsd->btd", mixed, wo)
        hidden = ops.relu(ops.einsum("btd,df->btf", x, up))
        made: Symbol = x + ops.einsum("btf,fd->btd", hidden, down)
        return made

    projection = (width, heads, depth)
    return trace(
        forward,
        (batch, length, width),
        *(projection, projection, projection),
        (heads, depth, width),
        (width, 4 * width),
        (4 * width, width),
        meshes=[f'@m = <["dp"={shape[0]}, "tp"={shape[1]}]>'],
        shardings={
            "x": '<@m, [{"dp"}, {}, {}]>',
            "wq": '<@m, [{}, {"tp"}, {}]>',
            "up": '<@m, [{}, {"tp"}]>',
        },
    )

"""Propagation through a transformer's training step, beside Shardy's own pipeline on its text."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator

from benchmarks.row import Row, time_each
from benchmarks.transformer import train_step_text
from weft.lang import factor_rule
from weft.plan import propagate


def run(seconds: float) -> Iterator[Row]:
    """All rows; each may take about `seconds`."""
    try:
        text = train_step_text(blocks=12 if seconds else 1)
        shardy = shardy_pipeline(text)
    except ImportError:
        return
    from weft.interop.stablehlo import read

    graph = read(text)

    def ours() -> object:
        factor_rule.cache_clear()
        return propagate(graph)

    (mine, theirs), n = time_each(ours, shardy, seconds=seconds)
    peer = "Shardy's propagation pipeline in jaxlib"
    yield Row.against("propagation/train-step", mine * 1e3, peer, theirs * 1e3, "ms", n)
    (reading,), n = time_each(lambda: read(text), seconds=seconds)
    yield Row("propagation/read-stablehlo", reading * 1e3, "ms", n)
    yield Row("propagation/train-step-memory", peak(lambda: propagate(read(text))) / 1e6, "MB", 1)


def peak(call: Callable[[], object]) -> int:
    """The most bytes that Python objects take during a call: the graph, and what is found of it."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def shardy_pipeline(text: str) -> Callable[[], object]:
    """A call that runs the pipeline on a module made anew from the text; making it is not timed."""
    from jax.interpreters import mlir
    from jaxlib.mlir import ir, passmanager

    context = mlir.make_ir_context()
    with context:
        whole = ir.Module.parse(text)
        passes = passmanager.PassManager.parse("builtin.module(sdy-propagation-pipeline)")

    def call() -> object:
        with context:
            copy = whole.operation.clone()
            passes.run(copy)
            return copy

    return call

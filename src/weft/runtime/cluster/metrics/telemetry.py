"""Export run records as OpenTelemetry spans and metrics.

Only the OpenTelemetry API is used: without it, or without a configured provider, nothing happens.
A run is a span below the current one; each task is a span below it, with the times that its worker
measured.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.runtime.cluster.metrics.record import RunRecord, TaskRecord, Total

SCOPE = "weft.runtime.cluster"
_BYTES = ("received", "sent", "read", "written")

Attributes = Mapping[str, str | int | float]


def is_wanted() -> bool:
    """Return whether the program has configured a provider of spans or metrics.

    A program that has must have imported the API; importing it only to ask would be slow.

    >>> is_wanted() in (True, False)
    True
    """
    if sys.modules.get("opentelemetry") is None:
        return False
    trace, metrics = _api()
    providers = trace.get_tracer_provider(), metrics.get_meter_provider()
    return not all(map(_is_proxy, providers))


def emit(record: RunRecord, tracers: Any = None, meters: Any = None) -> None:
    """Send a record to the given providers of spans and metrics, or to the configured ones."""
    if not (tracers or meters or is_wanted()):
        return
    trace, metrics = _api()
    _emit_spans(record, trace, tracers or trace.get_tracer_provider())
    provider = meters or metrics.get_meter_provider()
    if not _is_proxy(provider):
        _emit_metrics(record, _instruments(provider))


def _api() -> tuple[Any, Any]:
    return import_module("opentelemetry.trace"), import_module("opentelemetry.metrics")


def _is_proxy(provider: Any) -> bool:
    """Return whether no provider is configured; the API's placeholder classes are private.

    Instruments created on a placeholder would be created again once there is a provider.
    """
    return type(provider).__name__ in ("ProxyTracerProvider", "_ProxyMeterProvider")


def _emit_spans(record: RunRecord, trace: Any, provider: Any) -> None:
    tracer = trace.get_tracer(SCOPE, tracer_provider=provider)
    end = record.begin + record.seconds
    root = tracer.start_span("weft.run", start_time=_ns(record.begin), attributes=_of_run(record))
    if root.is_recording():
        inside = trace.set_span_in_context(root)
        for tasks, is_again in ((record.tasks, False), (record.again, True)):
            for task in tasks:
                span = tracer.start_span(
                    f"{task.kind} {task.operator}",
                    context=inside,
                    start_time=_ns(task.begin),
                    attributes=_of_task(task) | {"weft.again": is_again},
                )
                span.end(end_time=_ns(task.end))
    root.end(end_time=_ns(end))


def _of_run(record: RunRecord) -> Attributes:
    total = record.total
    attributes: dict[str, str | int | float | None] = {
        "weft.engine": record.engine,
        "weft.workers": record.workers,
        "weft.mesh": str(record.mesh),
        "weft.tasks": total.tasks,
        "weft.again": len(record.again),
        "weft.busy": total.seconds,
        **_sizes(total),
        "weft.peak": total.peak,
        "weft.predicted.seconds": record.predicted,
        "weft.predicted.peak": record.bound,
    }
    return {key: value for key, value in attributes.items() if value is not None}


def _of_task(task: TaskRecord) -> dict[str, str | int | float | bool]:
    kept = ("kind", "operator", "values", "cell", "worker", "cpu", "peak", "flops")
    named = {f"weft.{name}": getattr(task, name) for name in kept}
    sizes = {f"weft.bytes.{name}": getattr(task, name) for name in _BYTES[1:]}
    own = {"weft.task": task.number, "weft.box": str(task.box), "weft.stolen": task.is_stolen}
    return named | sizes | own | {"weft.bytes.received": task.arrived}


def _sizes(total: Total) -> dict[str, int]:
    return {f"weft.bytes.{name}": getattr(total, name) for name in _BYTES}


@cache
def _instruments(provider: Any) -> Mapping[str, Any]:
    """Return counters and histograms, created once for each provider."""
    meter = provider.get_meter(SCOPE)
    count, spread = meter.create_counter, meter.create_histogram
    named = [
        (count, "tasks", "{task}", "Tasks that ran"),
        (count, "cpu", "s", "Seconds of processors that tasks took"),
        *((count, f"bytes.{name}", "By", f"Bytes that tasks have {name}") for name in _BYTES),
        (spread, "run.duration", "s", "Seconds of a run"),
        (spread, "task.duration", "s", "Seconds of a task"),
        (spread, "worker.peak", "By", "The most memory of a worker in a run"),
    ]
    return {name: new(f"weft.cluster.{name}", unit, text) for new, name, unit, text in named}


def _emit_metrics(record: RunRecord, instruments: Mapping[str, Any]) -> None:
    engine = {"weft.engine": record.engine}
    instruments["run.duration"].record(record.seconds, engine)
    for task in record.tasks:
        attributes = {"weft.operator": task.operator, **engine}
        instruments["task.duration"].record(task.seconds, attributes)
    for operator, total in record.by_operator.items():
        attributes = {"weft.operator": operator, **engine}
        for name in ("tasks", "cpu", *(f"bytes.{name}" for name in _BYTES)):
            instruments[name].add(getattr(total, name.rpartition(".")[2]), attributes)
    for worker, total in record.by_worker.items():
        if total.peak:
            instruments["worker.peak"].record(total.peak, {"weft.worker": worker, **engine})


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)

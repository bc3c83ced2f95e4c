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
from typing import TYPE_CHECKING, Any, NamedTuple

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
    return {
        "weft.task": task.number,
        "weft.kind": task.kind,
        "weft.operator": task.operator,
        "weft.values": task.values,
        "weft.box": str(task.box),
        "weft.cell": task.cell,
        "weft.worker": task.worker,
        "weft.cpu": task.cpu,
        "weft.bytes.received": task.arrived,
        "weft.bytes.sent": task.sent,
        "weft.bytes.read": task.read,
        "weft.bytes.written": task.written,
        "weft.peak": task.peak,
        "weft.flops": task.flops,
    }


def _sizes(total: Total) -> dict[str, int]:
    return {f"weft.bytes.{name}": getattr(total, name) for name in _BYTES}


class _Instruments(NamedTuple):
    """Counters and histograms, created once for each provider."""

    tasks: Any
    sizes: Mapping[str, Any]
    runs: Any
    seconds: Any
    cpu: Any
    peak: Any


@cache
def _instruments(provider: Any) -> _Instruments:
    meter = provider.get_meter(SCOPE)
    count, spread = meter.create_counter, meter.create_histogram
    return _Instruments(
        count("weft.cluster.tasks", "{task}", "Tasks that ran"),
        {
            name: count(f"weft.cluster.bytes.{name}", "By", f"Bytes that tasks have {name}")
            for name in _BYTES
        },
        spread("weft.cluster.run.duration", "s", "Seconds of a run"),
        spread("weft.cluster.task.duration", "s", "Seconds of a task"),
        count("weft.cluster.cpu", "s", "Seconds of processors that tasks took"),
        spread("weft.cluster.worker.peak", "By", "The most memory of a worker in a run"),
    )


def _emit_metrics(record: RunRecord, instruments: _Instruments) -> None:
    engine = {"weft.engine": record.engine}
    instruments.runs.record(record.seconds, engine)
    for task in record.tasks:
        instruments.seconds.record(task.seconds, {"weft.operator": task.operator, **engine})
    for operator, total in record.by_operator.items():
        attributes = {"weft.operator": operator, **engine}
        instruments.tasks.add(total.tasks, attributes)
        instruments.cpu.add(total.cpu, attributes)
        for name, counter in instruments.sizes.items():
            counter.add(getattr(total, name), attributes)
    for worker, total in record.by_worker.items():
        if total.peak:
            instruments.peak.record(total.peak, {"weft.worker": worker, **engine})


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)

"""Runs as OpenTelemetry spans and metrics, taken by the SDK; nothing without it, or a provider."""

import subprocess
import sys

import pytest
from tests.runtime.cluster.metrics import made_up, recorded, task

from weft.runtime.cluster.metrics.record import deliver, is_recorded, recording
from weft.runtime.cluster.metrics.telemetry import emit

try:
    import opentelemetry.sdk.metrics as sdk_metrics
    import opentelemetry.sdk.metrics.export as metrics_export
    import opentelemetry.sdk.trace as sdk_trace
    import opentelemetry.sdk.trace.export as trace_export
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
except ImportError:
    sdk_trace = None

needs_sdk = pytest.mark.skipif(sdk_trace is None, reason="opentelemetry-sdk is not installed")


@pytest.fixture
def spans():
    exporter, provider = InMemorySpanExporter(), sdk_trace.TracerProvider()
    provider.add_span_processor(trace_export.SimpleSpanProcessor(exporter))
    return exporter, provider


@pytest.fixture
def metrics():
    reader = metrics_export.InMemoryMetricReader()
    provider = sdk_metrics.MeterProvider([reader])
    yield reader, provider
    provider.shutdown()


def points(reader):
    """The points of every metric: by name, then by attributes."""
    (resource,) = reader.get_metrics_data().resource_metrics
    (scope,) = resource.scope_metrics
    assert scope.scope.name == "weft.runtime.cluster"
    return {
        one.name: {tuple(sorted(p.attributes.items())): p for p in one.data.data_points}
        for one in scope.metrics
    }


@needs_sdk
def test_spans_have_the_measured_times_and_say_what_they_are(spans, metrics):
    exporter, provider = spans
    record = made_up(
        task(0, received={1: 30, 2: 12}, sent=5, peak=7),
        task(1, operator="relu", worker="host:2"),
        again=(task(0, begin=1000.5),),
        predicted=4.0,
    )
    emit(record, provider, metrics[1])
    *tasks, run = exporter.get_finished_spans()
    assert [one.name for one in tasks] == ["compute matmul", "compute relu", "compute matmul"]
    assert run.name == "weft.run"
    assert (run.start_time, run.end_time) == (1000 * 10**9, 1010 * 10**9)
    assert (tasks[1].start_time, tasks[1].end_time) == (1001 * 10**9, 1002 * 10**9)
    assert {one.parent.span_id for one in tasks} == {run.context.span_id}
    said = tasks[0].attributes
    assert said["weft.operator"] == "matmul"
    assert said["weft.box"] == "[0:8, 0:4]"
    assert (said["weft.cell"], said["weft.worker"]) == (0, "host:1")
    assert (said["weft.bytes.received"], said["weft.bytes.sent"]) == (42, 5)
    assert [one.attributes["weft.again"] for one in tasks] == [False, False, True]
    assert run.attributes["weft.bytes.received"] == 42
    assert run.attributes["weft.predicted.seconds"] == 4.0
    assert "weft.predicted.peak" not in run.attributes


@needs_sdk
def test_a_run_is_inside_the_span_that_is_current(spans):
    exporter, provider = spans
    with provider.get_tracer("mine").start_as_current_span("all") as mine:
        emit(made_up(task(0)), provider)
    run = next(one for one in exporter.get_finished_spans() if one.name == "weft.run")
    assert run.parent.span_id == mine.get_span_context().span_id


@needs_sdk
def test_metrics_add_up_over_runs_and_are_made_once(spans, metrics, caplog):
    reader, provider = metrics
    record = recorded()
    for _ in range(2):
        emit(record, spans[1], provider)
    assert caplog.text == ""
    found = points(reader)
    engine = ("weft.engine", "threads")
    operator, total = max(record.by_operator.items(), key=lambda item: item[1].received)
    at = (engine, ("weft.operator", operator))
    assert total.received > 0
    assert found["weft.cluster.tasks"][at].value == 2 * total.tasks
    assert found["weft.cluster.bytes.received"][at].value == 2 * total.received
    assert found["weft.cluster.cpu"][at].value == pytest.approx(2 * total.cpu)
    assert found["weft.cluster.task.duration"][at].count == 2 * total.tasks
    assert found["weft.cluster.task.duration"][at].sum == pytest.approx(2 * total.seconds)
    assert found["weft.cluster.run.duration"][(engine,)].count == 2
    for worker, one in record.by_worker.items():
        if one.peak:
            assert (
                found["weft.cluster.worker.peak"][engine, ("weft.worker", worker)].max == one.peak
            )


def quiet(code, *before):
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join([*before, code])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


ONCE = """
import sys
from weft import DeviceMesh
from weft.runtime.cluster.metrics.record import RunRecord, is_recorded
from weft.runtime.cluster.metrics.telemetry import emit
emit(RunRecord("threads", 1, DeviceMesh("m", (1,), ("x",)), 0.0, 1.0, ()))
"""


def test_nothing_without_the_api():
    assert quiet(ONCE, "import sys; sys.modules['opentelemetry'] = None") == ""


@needs_sdk
def test_nothing_without_a_provider_and_everything_with_one_that_came_later():
    later = """
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
trace.set_tracer_provider(TracerProvider())
emit(RunRecord("threads", 1, DeviceMesh("m", (1,), ("x",)), 0.0, 1.0, ()))
(resource,) = reader.get_metrics_data().resource_metrics
print(resource.scope_metrics[0].metrics[0].data.data_points[0].count)
print(is_recorded())
"""
    assert quiet(ONCE) == ""
    assert quiet(ONCE + later) == "1\nTrue\n"


def test_records_are_delivered_to_the_blocks_around():
    record = made_up(task(0))
    assert not is_recorded()
    with recording() as outer:
        assert is_recorded()
        deliver(record)
        with recording() as inner:
            deliver(record)
    assert outer == [record, record]
    assert inner == [record]

r"""Run records as versioned JSON, checked field by field when read, and as Chrome traces.

    {"weft_run": 1,
     "engine": "ray", "workers": 2, "mesh": "@m = <[\"x\"=2]>",
     "begin": 1794770712.1, "seconds": 0.25,
     "bound": 536870912, "predicted": 0.2, "machine": {"weft_machine": 1, …}, "missing": 0,
     "tasks": [{"number": 0, "kind": "compute", "operator": "matmul", "values": "y",
                "box": [[0, 8], [0, 4]], "cell": 0, "worker": "host:71",
                "begin": 1794770712.2, "seconds": 0.1, "cpu": 0.1, "received": {"1": 64}, …}],
     "again": [],
     "adaptations": [{"at": 1794770712.2, "kind": "rebalance", "why": "host:71 takes …"}]}

A box is the start and the stop of each dimension; `received` is bytes by cell. Empty fields of a
task are left out. An error names the path of the wrong field: `tasks[3].box[0]`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any

from weft.errors import WeftError
from weft.lang.dtype import DTYPES, is_dtype
from weft.lang.field import LARGEST, MOST, Field, parse_json
from weft.plan import Machine
from weft.plan.plan_file import read_mesh
from weft.space import ZRange
from weft.values import FrozenMap

if TYPE_CHECKING:
    from weft.runtime.cluster.metrics.record import Adaptation, RunRecord, TaskRecord

VERSION = 1
FIELDS = "weft_run engine workers mesh begin seconds bound predicted machine missing tasks again"
FIELDS += " adaptations"
MOST_BYTES = 1 << 62
"""Limit on any number of bytes or operations."""

_TEXTS = ("kind", "operator", "worker")
_COUNTS = ("cell", "sent", "read", "written", "peak", "moved", "flops", "touched")
_SECONDS = ("begin", "seconds", "cpu", "receiving", "reading", "writing")


def write_record(record: RunRecord, indent: int | None = 1) -> str:
    """Return the record as JSON."""
    return json.dumps(
        {
            "weft_run": VERSION,
            "engine": record.engine,
            "workers": record.workers,
            "mesh": str(record.mesh),
            "begin": record.begin,
            "seconds": record.seconds,
            "bound": record.bound,
            "predicted": record.predicted,
            "machine": None if record.machine is None else record.machine.to_data(),
            "missing": record.missing,
            "tasks": list(map(_task_data, record.tasks)),
            "again": list(map(_task_data, record.again)),
            "adaptations": [each._asdict() for each in record.adaptations],
        },
        indent=indent,
    )


def _task_data(task: TaskRecord) -> dict[str, Any]:
    """Return the fields of a task that are not empty."""
    data = task._asdict()
    data["box"] = [list(sides) for sides in zip(task.box.start, task.box.stop)]
    data["received"] = {str(cell): size for cell, size in task.received.items()}
    data["work"] = {name: list(pair) for name, pair in task.work.items()}
    kept = ("number", "box", "cell", "begin", "seconds")
    return {key: value for key, value in data.items() if key in kept or not _is_empty(value)}


def _is_empty(value: object) -> bool:
    return value is None or not (isinstance(value, float) or value)


def read_record(text: str) -> dict[str, Any]:
    """Return the arguments of `RunRecord` that a text describes."""
    root = parse_json(text, "the run")
    root.fields(FIELDS)
    if root.at("weft_run").value != VERSION:
        root.at("weft_run").fail(f"the version {VERSION}")
    machine = root.at("machine")
    tasks = root.at("tasks").items(_task)
    _check_numbers(root.at("tasks"), tasks)
    return {
        "engine": root.at("engine").text(),
        "workers": _count(root.at("workers"), least=1),
        "mesh": read_mesh(root.at("mesh")),
        "begin": _seconds(root.at("begin")),
        "seconds": _seconds(root.at("seconds")),
        "tasks": tuple(tasks),
        "again": tuple(root.at("again").items(_task)),
        "missing": _optional(root.at("missing"), _count) or 0,
        "bound": _optional(root.at("bound"), _count),
        "predicted": _optional(root.at("predicted"), _seconds),
        "machine": _optional(machine, _machine),
        "adaptations": tuple(root.at("adaptations").items(_adaptation)),
    }


def _check_numbers(field: Field, tasks: list[TaskRecord]) -> None:
    """Refuse a task that is listed twice: repeated attempts have a list of their own."""
    for place, (one, two) in enumerate(pairwise(tasks), start=1):
        if two.number <= one.number:
            path = f"{field.path}[{place}].number"
            raise WeftError(f"{path}: task {two.number} is listed after task {one.number}")


def _task(field: Field) -> TaskRecord:
    from weft.runtime.cluster.metrics.record import TaskRecord

    field.fields(" ".join(TaskRecord._fields))
    numbers: dict[str, Any] = {key: _text(field.at(key)) for key in _TEXTS}
    numbers |= {key: _optional(field.at(key), _count) or 0 for key in _COUNTS}
    numbers |= {key: _optional(field.at(key), _seconds) or 0.0 for key in _SECONDS}
    numbers |= {key: _seconds(field.at(key)) for key in ("begin", "seconds")}
    return TaskRecord(
        number=_count(field.at("number"), most=MOST),
        values=_text(field.at("values")),
        box=_box(field.at("box")),
        received=_received(field.at("received")),
        dtype=_dtype(field.at("dtype")),
        is_bound=field.at("is_bound").flag(),
        is_stolen=field.at("is_stolen").flag(),
        predicted=_optional(field.at("predicted"), _seconds),
        work=FrozenMap(field.at("work").table(_work).items()),
        **numbers,
    )


def _work(field: Field) -> tuple[int, int]:
    pair = field.items(_count)
    if len(pair) != 2:
        field.fail("[operations, bytes]")
    return pair[0], pair[1]


def _adaptation(field: Field) -> Adaptation:
    from weft.runtime.cluster.metrics.record import Adaptation

    field.fields("at kind why")
    return Adaptation(_seconds(field.at("at")), field.at("kind").text(), field.at("why").text())


def _optional(field: Field, read: Any) -> Any:
    return None if field.value is None else read(field)


def _text(field: Field) -> str:
    """Return a text that may be empty or missing."""
    return "" if field.value in (None, "") else field.text()


def _count(field: Field, least: int = 0, most: int = MOST_BYTES) -> int:
    n = field.value
    if not isinstance(n, int) or isinstance(n, bool) or not least <= n <= most:
        field.fail(f"an integer from {least} to {most}")
    return int(n)


def _seconds(field: Field) -> float:
    if field.value is None or not 0 <= field.number(0) < inf:
        field.fail("seconds, 0 or more")
    return field.number(0)


def _machine(field: Field) -> Machine:
    return Machine.from_field(field)


def _box(field: Field) -> ZRange:
    if not isinstance(field.value, list):
        field.fail("a list of [start, stop] for each dimension")
    sides = field.items(_side)
    return ZRange([low for low, _ in sides], [high for _, high in sides])


def _side(field: Field) -> tuple[int, int]:
    sides = field.value if isinstance(field.value, list) else []
    if list(map(type, sides)) != [int, int] or not -LARGEST <= sides[0] <= sides[1] <= LARGEST:
        field.fail("[start, stop] with start <= stop")
    return sides[0], sides[1]


def _received(field: Field) -> Mapping[int, int]:
    return FrozenMap((_cell(field, key), size) for key, size in field.table(_count).items())


def _cell(field: Field, key: str) -> int:
    if not (key.isascii() and key.isdecimal() and len(key) <= 16) or str(int(key)) != key:
        raise WeftError(f"{field.at(key).path}: expected the number of a cell")
    return int(key)


def _dtype(field: Field) -> str:
    dtype = _text(field)
    if dtype and not is_dtype(dtype):
        raise WeftError(f"{field.path}: unknown dtype", hint=" ".join(DTYPES))
    return dtype


# -- Chrome traces --------------------------------------------------------------------------------


def write_trace(record: RunRecord) -> str:
    """Return a run as Chrome trace JSON: a process per worker, a thread per concurrent task."""
    attempts = [(task, False) for task in record.tasks] + [(task, True) for task in record.again]
    workers = list(dict.fromkeys([*record.by_worker, *(task.worker for task in record.again)]))
    busy_until: dict[str, list[float]] = {name: [] for name in workers}
    number = {name: n for n, name in enumerate(workers)}
    events = [
        {"ph": "M", "name": "process_name", "pid": n, "args": {"name": name or "?"}}
        for name, n in number.items()
    ]
    for task, is_repeated in sorted(attempts, key=lambda attempt: attempt[0].begin):
        ends = busy_until[task.worker]
        thread = next((n for n, end in enumerate(ends) if end <= task.begin), len(ends))
        ends[thread : thread + 1] = [task.end]
        events += _task_events(task, is_repeated, number[task.worker], thread)
    events += [
        {"ph": "i", "s": "g", "name": each.kind, "ts": each.at * 1e6, "args": {"why": each.why}}
        for each in record.adaptations
    ]
    headline = {"headline": record.headline, "mesh": str(record.mesh)}
    return json.dumps({"traceEvents": events, "otherData": headline})


def _task_events(
    task: TaskRecord, is_repeated: bool, worker: int, thread: int
) -> Iterator[dict[str, Any]]:
    """Yield the event of a task, and those of the time it received, read and wrote inside it."""

    def event(name: str, category: str, begin: float, seconds: float) -> dict[str, Any]:
        times = {"ts": begin * 1e6, "dur": seconds * 1e6}
        return {"ph": "X", "name": name, "cat": category, "pid": worker, "tid": thread, **times}

    kept = ("number", "cell", "values", "cpu", "sent", "read", "written", "peak", "flops")
    args = {key: getattr(task, key) for key in kept} | {"box": str(task.box)}
    args |= {"received": task.arrived, "predicted": task.predicted, "repeated": is_repeated}
    yield {**event(task.operator, task.kind, task.begin, task.seconds), "args": args}
    starts = {
        "receiving": task.begin,
        "reading": task.begin + task.receiving,
        "writing": task.end - task.writing,
    }
    for part, begin in starts.items():
        if getattr(task, part):
            yield event(part, part, begin, getattr(task, part))

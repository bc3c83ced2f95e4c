r"""Records of runs as JSON: versioned, checked field by field when it is read.

    {"weft_run": 1,
     "engine": "ray", "workers": 2, "mesh": "@m = <[\"x\"=2]>",
     "begin": 1794770712.1, "seconds": 0.25,
     "bound": 536870912, "predicted": 0.2, "machine": {"weft_machine": 1, …}, "missing": 0,
     "tasks": [{"number": 0, "kind": "compute", "operator": "matmul", "values": "y",
                "box": [[0, 8], [0, 4]], "cell": 0, "worker": "host:71",
                "begin": 1794770712.2, "seconds": 0.1, "cpu": 0.1, "received": {"1": 64}, …}],
     "again": []}

A box is the start and the stop of each dimension; `received` are bytes by cell. Of a task, what is
nothing is left out. An error names the path of the field that is wrong: `tasks[3].box[0]`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any

from weft.errors import WeftError
from weft.lang.dtype import DTYPES
from weft.lang.field import LARGEST, MOST, Field, parse_json
from weft.plan import Machine
from weft.plan.plan_file import read_mesh
from weft.runtime.cluster.metrics.task_record import TaskRecord
from weft.space import ZRange
from weft.values import FrozenMap

if TYPE_CHECKING:
    from weft.runtime.cluster.metrics.record import RunRecord

VERSION = 1
FIELDS = "weft_run engine workers mesh begin seconds bound predicted machine missing tasks again"
MOST_BYTES = 1 << 62
"""The most bytes or operations of anything."""

_TEXTS = ("kind", "operator", "worker")
_COUNTS = ("cell", "sent", "read", "written", "peak", "moved", "flops", "touched")
_SECONDS = ("begin", "seconds", "cpu", "receiving", "reading", "writing")


def write_record(record: RunRecord, indent: int | None = 1) -> str:
    """The record as text."""
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
        },
        indent=indent,
    )


def _task_data(task: TaskRecord) -> dict[str, Any]:
    """The fields of a task, as far as they say something."""
    data = task._asdict()
    data["box"] = [list(sides) for sides in zip(task.box.start, task.box.stop)]
    data["received"] = {str(cell): size for cell, size in task.received.items()}
    kept = ("number", "box", "cell", "begin", "seconds")
    return {key: value for key, value in data.items() if key in kept or _says(value)}


def _says(value: object) -> bool:
    return value is not None and (isinstance(value, float) or bool(value))


def read_record(text: str) -> dict[str, Any]:
    """What a text says of a run: the arguments of `RunRecord`."""
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
        "missing": _or_nothing(root.at("missing"), _count) or 0,
        "bound": _or_nothing(root.at("bound"), _count),
        "predicted": _or_nothing(root.at("predicted"), _seconds),
        "machine": _or_nothing(machine, _machine),
    }


def _check_numbers(field: Field, tasks: list[TaskRecord]) -> None:
    """Refuse a task that is there twice: what ran again is listed apart."""
    for place, (one, two) in enumerate(pairwise(tasks), start=1):
        if two.number <= one.number:
            path = f"{field.path}[{place}].number"
            raise WeftError(f"{path}: task {two.number} is behind task {one.number}")


def _task(field: Field) -> TaskRecord:
    field.fields(" ".join(TaskRecord._fields))
    said: dict[str, Any] = {key: _text(field.at(key)) for key in _TEXTS}
    said |= {key: _or_nothing(field.at(key), _count) or 0 for key in _COUNTS}
    said |= {key: _or_nothing(field.at(key), _seconds) or 0.0 for key in _SECONDS}
    said |= {key: _seconds(field.at(key)) for key in ("begin", "seconds")}
    return TaskRecord(
        number=_count(field.at("number"), most=MOST),
        values=_text(field.at("values")),
        box=_box(field.at("box")),
        received=_received(field.at("received")),
        dtype=_dtype(field.at("dtype")),
        is_bound=field.at("is_bound").flag(),
        predicted=_or_nothing(field.at("predicted"), _seconds),
        **said,
    )


def _or_nothing(field: Field, read: Any) -> Any:
    return None if field.value is None else read(field)


def _text(field: Field) -> str:
    """A text that may be empty, or left out."""
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
        field.fail("[start, stop], the stop not before the start")
    return sides[0], sides[1]


def _received(field: Field) -> Mapping[int, int]:
    return FrozenMap((_cell(field, key), size) for key, size in field.table(_count).items())


def _cell(field: Field, key: str) -> int:
    if not (key.isascii() and key.isdecimal() and len(key) <= 16) or str(int(key)) != key:
        raise WeftError(f"{field.at(key).path}: expected the number of a cell")
    return int(key)


def _dtype(field: Field) -> str:
    dtype = _text(field)
    if dtype and dtype not in DTYPES:
        raise WeftError(f"{field.path}: there is no such dtype", hint=" ".join(DTYPES))
    return dtype

"""`calibrate`: a machine as a run found it: what its tasks computed, got and stored in which time.

Rates are by the seconds of processors, for a worker that was kept waiting is no slower machine. A
rate is the best that an operator reaches with its middle task, since operators that wait for memory
say nothing of products. Links are lines through what tasks waited for: seconds to start, and bytes
in a second. Operators have rows of the seconds that their tasks took by the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from weft.errors import WeftError
from weft.layout import DeviceMesh
from weft.plan import Link, Machine
from weft.plan.resharding.counts import ranks_by_device
from weft.runtime.cluster.metrics.amount import KIND
from weft.runtime.cluster.metrics.record import RunRecord
from weft.runtime.cluster.metrics.task_record import TaskRecord
from weft.values import counted

FEWEST = 3
"""The fewest tasks that say something."""
FAR = 3.0
"""What is off a line by so many times the median is left out."""


class Calibration(NamedTuple):
    """A machine, and of how many tasks each of its figures is made."""

    machine: Machine
    tasks: Mapping[str, int]
    """By figure: a dtype, `memory`, `links`, `links.` and an axis, `storage`."""


def calibrate(record: RunRecord) -> Calibration:
    """The machine of a run: what was measured, and the rest as in the machine of its plan.

    Seconds of every operator, by powers of two of its operations, are the row of that name in
    the table `grid` of `Machine.operations`.

    >>> from weft import ZRange
    >>> def task(n, flops):
    ...     return TaskRecord(n, "compute", "matmul", "y", ZRange((0,), (4,)), 0, "host:7", 9.0 + n,
    ...                       flops / 1e9, flops / 1e9, {}, flops=flops, dtype="float32", touched=8)
    >>> tasks = tuple(task(n, 1 << 20) for n in range(3))
    >>> run = RunRecord("ray", 2, DeviceMesh("m", (1,), ("x",)), 9.0, 3.0, tasks)
    >>> calibrate(run).machine.flops, calibrate(run).tasks
    ({'float32': 1000000000.0}, {'float32': 3, 'memory': 3})
    """
    base = record.machine or Machine()
    tasks = [task for task in record.tasks if task.flops and _seconds(task) > 0]
    by_dtype, links = _by_dtype(tasks), _links(record)
    storage = _line(list(_stored(record.tasks)))
    rest = links.pop("", None)
    machine = Machine(
        {
            **base.links,
            **{axis: (*line[:2], base.link(axis).shared) for axis, line in links.items()},
        },
        rest.latency if rest else base.latency,
        rest.bandwidth if rest else base.bandwidth,
        shared=base.shared,
        flops={**base.flops, **{dtype: _rate(some) for dtype, some in by_dtype.items()}},
        memory_bandwidth=_best(tasks, lambda task: task.touched) or base.memory_bandwidth,
        capacity=base.capacity,
        overlap=base.overlap,
        storage=Link(*storage[:2], base.storage.shared) if storage else base.storage,
        name=f"{record.engine}, {counted(record.workers, 'worker')}",
        operations={**base.operations, KIND: {**base.operations.get(KIND, {}), **_rows(tasks)}},
    )
    counts = {dtype: len(some) for dtype, some in by_dtype.items()} | {"memory": len(tasks)}
    counts |= {"links": rest.tasks} if rest else {}
    counts |= {f"links.{axis}": line.tasks for axis, line in links.items()}
    counts |= {"storage": storage.tasks} if storage else {}
    return Calibration(machine, counts)


def _seconds(task: TaskRecord) -> float:
    """What computing took: the time of its processor, or of the clock where that had several."""
    return min(task.cpu, task.computing) if task.cpu else task.computing


def _by_dtype(tasks: Iterable[TaskRecord]) -> dict[str, list[TaskRecord]]:
    """The tasks that compute on a dtype, of those of which there are enough."""
    found: dict[str, list[TaskRecord]] = {}
    for task in tasks:
        if task.dtype:
            found.setdefault(task.dtype, []).append(task)
    enough = {dtype: some for dtype, some in found.items() if len(some) >= FEWEST}
    if not enough:
        counts = ", ".join(f"{len(some)} on {dtype}" for dtype, some in found.items()) or "none"
        raise WeftError(
            f"the run says too little of a machine: of the tasks that computed there are {counts}, "
            f"and {FEWEST} on one dtype are the least",
            hint="record a longer run, or one that is cut into more tasks",
        )
    return enough


def _rate(tasks: Sequence[TaskRecord]) -> float:
    return _best(tasks, lambda task: task.flops)


def _best(tasks: Iterable[TaskRecord], amount: Callable[[TaskRecord], int]) -> float:
    """The best rate of an operator: of each, that of its middle task; the small ones do not count.

    What a task takes to begin with is most of a small one.
    """
    rates = []
    for some in _by_operator(tasks).values():
        least = max(map(amount, some)) / 2
        large = [amount(task) / _seconds(task) for task in some if amount(task) >= least]
        rates.append(median(large))
    return _rounded(max(rates, default=0.0))


def _by_operator(tasks: Iterable[TaskRecord]) -> dict[str, list[TaskRecord]]:
    found: dict[str, list[TaskRecord]] = {}
    for task in tasks:
        found.setdefault(task.operator, []).append(task)
    return found


def _rows(tasks: Iterable[TaskRecord]) -> dict[str, list[float]]:
    """For each operator that ran often enough, seconds by powers of two of its operations."""
    return {
        operator: row_of(_points(some))
        for operator, some in _by_operator(tasks).items()
        if len(some) >= FEWEST
    }


def _points(tasks: Iterable[TaskRecord]) -> list[tuple[int, float]]:
    """The median seconds by operations."""
    found: dict[int, list[float]] = {}
    for task in tasks:
        found.setdefault(task.flops, []).append(task.computing)
    return [(flops, median(found[flops])) for flops in sorted(found)]


def row_of(points: Sequence[tuple[int, float]]) -> list[float]:
    """Seconds at every power of two up to the one beyond the last of some points.

    Between points lie lines; outside, seconds grow with the operations.

    >>> row_of([(4, 8.0)])
    [2.0, 4.0, 8.0, 16.0]
    >>> row_of([(2, 3.0), (8, 6.0)])
    [1.5, 3.0, 4.0, 6.0, 12.0]
    """
    sizes = [1 << power for power in range(points[-1][0].bit_length() + 1)]
    return [_rounded(_between(points, size)) for size in sizes]


def _between(points: Sequence[tuple[int, float]], size: int) -> float:
    below = [point for point in points if point[0] <= size]
    above = [point for point in points if point[0] > size]
    if not below or not above:
        flops, seconds = below[-1] if below else above[0]
        return seconds * size / flops
    (low, least), (high, most) = below[-1], above[0]
    return least + (most - least) * (size - low) / (high - low)


class Line(NamedTuple):
    """Seconds to start and bytes in a second, of so many tasks."""

    latency: float
    bandwidth: float
    tasks: int


def _links(record: RunRecord) -> dict[str, Line]:
    """The link of all that came from other cells, and of each of several axes by itself."""
    samples: dict[str, list[tuple[int, float]]] = {"": []}
    for task in record.tasks:
        if task.arrived and task.receiving:
            sample = task.arrived, task.receiving
            samples[""].append(sample)
            for axis in _axes(record.mesh, task):
                samples.setdefault(axis, []).append(sample)
    lines = {axis: _line(some) for axis, some in samples.items()}
    return {axis: line for axis, line in lines.items() if line is not None}


def _axes(mesh: DeviceMesh, task: TaskRecord) -> list[str]:
    """The axis along which everything came, if it is one of several."""
    ranks = ranks_by_device(mesh)
    known = [cell for cell in task.received if cell in ranks]
    if len(mesh.axis_names) < 2 or task.cell not in ranks or len(known) < len(task.received):
        return []
    here = mesh.coord(ranks[task.cell])
    crossed = {
        axis
        for cell in known
        for axis, a, b in zip(mesh.axis_names, here, mesh.coord(ranks[cell]))
        if a != b
    }
    return list(crossed) if len(crossed) == 1 else []


def _stored(tasks: Iterable[TaskRecord]) -> Iterable[tuple[int, float]]:
    """What tasks read and wrote, each with its seconds."""
    for task in tasks:
        if task.read and task.reading:
            yield task.read, task.reading
        if task.written and task.writing:
            yield task.written, task.writing


def _line(samples: Sequence[tuple[int, float]]) -> Line | None:
    """The line through bytes and seconds, those far off it left out; None of too few."""
    if len(samples) < FEWEST:
        return None
    line = fitted(samples)
    off = [abs((line.latency + size / line.bandwidth) / taken - 1) for size, taken in samples]
    limit = FAR * median(off)
    near = [sample for sample, error in zip(samples, off) if error <= limit]
    return fitted(near) if len(near) >= FEWEST else line


def fitted(samples: Sequence[tuple[int, float]]) -> Line:
    """The line with the least squares of relative errors, so that small ones count as well.

    Where sizes do not tell a beginning from the rest, bytes in a second say it all.

    >>> fitted([(1000, 3e-6), (2000, 4e-6), (4000, 6e-6)])
    Line(latency=2e-06, bandwidth=1000000000.0, tasks=3)
    """
    a = sum(1 / taken**2 for _, taken in samples)
    b = sum(size / taken**2 for size, taken in samples)
    c = sum(size**2 / taken**2 for size, taken in samples)
    d, e = sum(1 / taken for _, taken in samples), sum(size / taken for size, taken in samples)
    determinant = a * c - b * b
    if determinant > 1e-9 * a * c:
        latency, slope = (d * c - e * b) / determinant, (a * e - b * d) / determinant
        if latency >= 0 and slope > 0:
            return Line(_rounded(latency), _rounded(1 / slope), len(samples))
    return Line(0.0, _rounded(c / e), len(samples))


def _rounded(number: float) -> float:
    """The number to six digits, more than anybody measures."""
    return float(f"{number:.6g}")

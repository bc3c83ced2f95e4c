"""`calibrate`: estimate a machine from the measurements of a run.

Rates use CPU time, since a worker that waits is not a slower machine. A rate is the best over all
operators of the median over an operator's large tasks: operators bound by memory say nothing about
arithmetic. Links are lines fitted to bytes and waiting time: latency and bandwidth. Rows of seconds
for each operator use wall-clock time, and so do the speeds of cells. The seconds of a task that has
several operators are divided among them in proportion to their operations or bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from weft.errors import WeftError
from weft.layout import DeviceMesh
from weft.plan import CellGroup, Link, Machine
from weft.plan.machine import GRID
from weft.plan.resharding.counts import ranks_by_device
from weft.runtime.cluster.metrics.record import RunRecord, TaskRecord
from weft.values import counted

FEWEST = 3
"""The fewest tasks from which a figure is estimated."""
NOTABLE = 1.25
"""Cells that are slower or faster by less are taken to be alike."""
SIMILAR = 4
"""Tasks are compared between cells if they have at least this part of the most operations."""
FAR = 3.0
"""Samples whose error exceeds this multiple of the median error are dropped as outliers."""


class Calibration(NamedTuple):
    """A machine, and the number of tasks behind each of its figures."""

    machine: Machine
    tasks: Mapping[str, int]
    """By figure: a dtype, `memory`, `links`, `links.` and an axis, `storage`."""


def calibrate(record: RunRecord) -> Calibration:
    """Estimate the machine of a run; figures without measurements come from the plan's machine.

    The seconds of each operator, for 1, 2, 4, … operations, are the row of its name in the table
    `grid` of `Machine.operations`; so are those of tasks that run several, by their names together.
    Cells that are slower or faster than most by a quarter are groups of their own. The machine says
    which of its figures were measured.

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
    flops = {**base.flops, **{dtype: _rate(some) for dtype, some in by_dtype.items()}}
    memory = _best(tasks, lambda task: task.touched)
    speeds = _cell_speeds(tasks)
    plain = Machine(flops=flops, memory_bandwidth=memory or base.memory_bandwidth)
    rows = _rows(tasks, plain, speeds)
    counts = {dtype: len(some) for dtype, some in by_dtype.items()} | {"memory": len(tasks)}
    counts |= {"links": rest.tasks} if rest else {}
    counts |= {f"links.{axis}": line.tasks for axis, line in links.items()}
    counts |= {"storage": storage.tasks} if storage else {}
    kept = [replace(one, speed=1.0) for one in base.cells if one.capacity is not None]
    groups = [CellGroup(devices=(cell,), speed=one.speed) for cell, one in speeds.items()]
    measured = {f"flops.{dtype}": len(some) for dtype, some in by_dtype.items()}
    measured |= {"memory_bandwidth": len(tasks)} if memory else {}
    measured |= {name: count for name, count in counts.items() if name[:5] in ("links", "stora")}
    measured |= {f"operations.{GRID}.{name}": one.tasks for name, one in rows.items()}
    measured |= {f"cells.{len(kept) + n}": one.tasks for n, one in enumerate(speeds.values())}
    machine = Machine(
        {
            **base.links,
            **{axis: (*line[:2], base.link(axis).shared) for axis, line in links.items()},
        },
        rest.latency if rest else base.latency,
        rest.bandwidth if rest else base.bandwidth,
        shared=base.shared,
        flops=flops,
        memory_bandwidth=plain.memory_bandwidth,
        capacity=base.capacity,
        overlap=base.overlap,
        storage=Link(*storage[:2], base.storage.shared) if storage else base.storage,
        name=f"{record.engine}, {counted(record.workers, 'worker')}",
        operations={
            **base.operations,
            GRID: {
                **base.operations.get(GRID, {}),
                **{name: one.seconds for name, one in rows.items()},
            },
        },
        cells=[*kept, *groups],
        measured=measured,
    )
    return Calibration(machine, counts)


def _seconds(task: TaskRecord) -> float:
    """Return the seconds of computing: CPU time, or wall-clock time if several threads computed."""
    return min(task.cpu, task.computing) if task.cpu else task.computing


def _by_dtype(tasks: Iterable[TaskRecord]) -> dict[str, list[TaskRecord]]:
    """Return the tasks by the dtype they compute in, for dtypes with enough tasks."""
    groups: dict[str, list[TaskRecord]] = {}
    for task in tasks:
        if task.dtype:
            groups.setdefault(task.dtype, []).append(task)
    enough = {dtype: some for dtype, some in groups.items() if len(some) >= FEWEST}
    if not enough:
        counts = ", ".join(f"{len(some)} in {dtype}" for dtype, some in groups.items()) or "none"
        raise WeftError(
            f"too few tasks to estimate a machine: {counts}; {FEWEST} in one dtype are needed",
            hint="record a longer run, or one with more tasks",
        )
    return enough


def _rate(tasks: Sequence[TaskRecord]) -> float:
    return _best(tasks, lambda task: task.flops)


def _best(tasks: Iterable[TaskRecord], amount: Callable[[TaskRecord], int]) -> float:
    """Return the best rate of any operator: the median over its large tasks.

    Small tasks are dominated by their start-up time.
    """
    rates = []
    for some in _by_operator(tasks).values():
        least = max(map(amount, some)) / 2
        large = [amount(task) / _seconds(task) for task in some if amount(task) >= least]
        rates.append(median(large))
    return _rounded(max(rates, default=0.0))


def _by_operator(tasks: Iterable[TaskRecord]) -> dict[str, list[TaskRecord]]:
    groups: dict[str, list[TaskRecord]] = {}
    for task in tasks:
        groups.setdefault(task.operator, []).append(task)
    return groups


class Speed(NamedTuple):
    """How many times as fast as most cells one is, and the number of tasks behind that."""

    speed: float
    tasks: int


def _cell_speeds(tasks: Sequence[TaskRecord]) -> dict[int, Speed]:
    """Return the speeds of the cells that differ from most.

    Of each operator the median rates of cells are compared with the median over the cells.
    """
    found: dict[int, list[tuple[float, int]]] = {}
    for some in _by_operator(tasks).values():
        by_cell: dict[int, list[float]] = {}
        least = max(task.flops for task in some) / SIMILAR
        for task in some:
            if task.flops >= least and task.computing:
                by_cell.setdefault(task.cell, []).append(task.flops / task.computing)
        rates = {cell: median(each) for cell, each in by_cell.items() if len(each) >= FEWEST}
        usual = median(rates.values()) if len(rates) > 1 else 0.0
        for cell, rate in rates.items():
            if usual:
                found.setdefault(cell, []).append((rate / usual, len(by_cell[cell])))
    speeds = {
        cell: Speed(_rounded(median(ratio for ratio, _ in each)), sum(n for _, n in each))
        for cell, each in sorted(found.items())
    }
    return {cell: one for cell, one in speeds.items() if not 1 / NOTABLE < one.speed < NOTABLE}


class MeasuredTimes(NamedTuple):
    """The seconds of an operator for 1, 2, 4, … operations, and the number of tasks behind them."""

    seconds: list[float]
    tasks: int


def _rows(
    tasks: Iterable[TaskRecord], machine: Machine, speeds: Mapping[int, Speed]
) -> dict[str, MeasuredTimes]:
    """Return the row of each operator with enough tasks, and of operators that run together."""
    samples: dict[str, list[tuple[int, float]]] = {}
    for task in tasks:
        seconds = task.computing * (speeds[task.cell].speed if task.cell in speeds else 1.0)
        samples.setdefault(task.operator, []).append((task.flops, seconds))
        if len(task.work) > 1:
            dtypes = [task.dtype] if task.dtype else []
            weights = {
                name: machine.seconds({name: flops}, dtypes, touched)
                for name, (flops, touched) in task.work.items()
            }
            total = sum(weights.values())
            for name, (flops, _) in task.work.items():
                if flops and total:
                    share = seconds * weights[name] / total
                    samples.setdefault(name, []).append((flops, share))
    return {
        name: MeasuredTimes(row_of(_points(some)), len(some))
        for name, some in samples.items()
        if len(some) >= FEWEST
    }


def _points(samples: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return the median seconds for each number of operations."""
    groups: dict[int, list[float]] = {}
    for flops, seconds in samples:
        groups.setdefault(flops, []).append(seconds)
    return [(flops, median(groups[flops])) for flops in sorted(groups)]


def row_of(points: Sequence[tuple[int, float]]) -> list[float]:
    """Interpolate seconds at every power of two, up to the first beyond the last point.

    Outside the points, seconds grow in proportion to the operations.

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


class FittedLine(NamedTuple):
    """Latency in seconds, bandwidth in bytes per second, and the number of tasks behind them."""

    latency: float
    bandwidth: float
    tasks: int


def _links(record: RunRecord) -> dict[str, FittedLine]:
    """Return a line for all data from other cells (key ""), and one for each of several axes."""
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
    """Return the axis along which all data of a task arrived, if the mesh has several axes."""
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
    """Yield the bytes and seconds of each read and write."""
    for task in tasks:
        if task.read and task.reading:
            yield task.read, task.reading
        if task.written and task.writing:
            yield task.written, task.writing


def _line(samples: Sequence[tuple[int, float]]) -> FittedLine | None:
    """Fit a line to bytes and seconds without outliers; None if there are too few samples."""
    if len(samples) < FEWEST:
        return None
    line = fitted(samples)
    off = [abs((line.latency + size / line.bandwidth) / taken - 1) for size, taken in samples]
    limit = FAR * median(off)
    near = [sample for sample, error in zip(samples, off) if error <= limit]
    return fitted(near) if len(near) >= FEWEST else line


def fitted(samples: Sequence[tuple[int, float]]) -> FittedLine:
    """Fit a line by least squares of relative errors, so that small samples count as well.

    If the sizes are too alike to separate latency from bandwidth, the latency is 0.

    >>> fitted([(1000, 3e-6), (2000, 4e-6), (4000, 6e-6)])
    FittedLine(latency=2e-06, bandwidth=1000000000.0, tasks=3)
    """
    a = sum(1 / taken**2 for _, taken in samples)
    b = sum(size / taken**2 for size, taken in samples)
    c = sum(size**2 / taken**2 for size, taken in samples)
    d, e = sum(1 / taken for _, taken in samples), sum(size / taken for size, taken in samples)
    determinant = a * c - b * b
    if determinant > 1e-9 * a * c:
        latency, slope = (d * c - e * b) / determinant, (a * e - b * d) / determinant
        if latency >= 0 and slope > 0:
            return FittedLine(_rounded(latency), _rounded(1 / slope), len(samples))
    return FittedLine(0.0, _rounded(c / e), len(samples))


def _rounded(number: float) -> float:
    """Round to six digits, more than any measurement has."""
    return float(f"{number:.6g}")

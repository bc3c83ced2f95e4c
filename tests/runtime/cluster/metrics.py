"""Records to test with: those of tasks that are measured and compute nothing, and made-up ones."""

import time
from concurrent.futures import ThreadPoolExecutor

from weft import DeviceMesh, Plan, ZRange, propagate, trace
from weft.runtime.cluster import TaskGraph
from weft.runtime.cluster.metrics.meter import Meter
from weft.runtime.cluster.metrics.record import RunRecord, TaskRecord

MESH = DeviceMesh("m", (2, 2), ("x", "y"))


def planned(machine=None):
    graph = trace(
        lambda x, w: (x @ w).sum(0),
        (16, 8),
        (8, 4),
        meshes=['@m = <["x"=2, "y"=2]>'],
        shardings={"x": '<@m, [{"x"}, {"y"}]>'},
    )
    return Plan.of(propagate(graph), machine)


def reported(graph, workers=2):
    """What workers report that wait a little in place of every task."""

    def work(task):
        with Meter(task.number, alone=False) as meter:
            meter.received.update(graph.moved(task))
            time.sleep(0.0005)
        return meter.report()

    pools = [ThreadPoolExecutor(1, f"weft-{n}") for n in range(workers)]
    begin, clock = time.time(), time.perf_counter()
    jobs = [pools[task.cell % workers].submit(work, task) for task in graph.tasks]
    reports = [job.result() for job in jobs]
    for pool in pools:
        pool.shutdown()
    return reports, begin, time.perf_counter() - clock


def recorded(machine=None, workers=2, **more):
    graph = TaskGraph.of(planned(machine))
    reports, begin, seconds = reported(graph, workers)
    said = {"engine": "threads", "workers": workers, "begin": begin, "seconds": seconds, **more}
    return RunRecord.of(graph, reports, **said)


def task(number=0, **said):
    """A made-up task: 1 s of float32 on cell 0."""
    given = {
        "kind": "compute",
        "operator": "matmul",
        "values": "y",
        "box": ZRange((0, 0), (8, 4)),
        "cell": 0,
        "worker": "host:1",
        "begin": 1000.0 + number,
        "seconds": 1.0,
        "cpu": 1.0,
        "received": {},
        "flops": 1_000_000,
        "dtype": "float32",
        "touched": 4_000,
    }
    return TaskRecord(number, **{**given, **said})


def made_up(*tasks, **said):
    given = {"engine": "ray", "workers": 2, "mesh": MESH, "begin": 1000.0, "seconds": 10.0}
    return RunRecord(**{**given, **said, "tasks": tuple(tasks)})

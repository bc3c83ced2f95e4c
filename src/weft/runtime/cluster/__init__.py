"""Run plans on the workers of a cluster: task graphs that any engine can run, and the engines."""

from weft.runtime.cluster.engines import engine_of
from weft.runtime.cluster.engines.dask import Dask
from weft.runtime.cluster.engines.engine import ClusterError, Engine, Session
from weft.runtime.cluster.engines.ray import Ray
from weft.runtime.cluster.engines.threads import Threads
from weft.runtime.cluster.metrics.meter import Report
from weft.runtime.cluster.metrics.record import RunRecord, recording
from weft.runtime.cluster.resume import LOCAL, Job, RunDirectory
from weft.runtime.cluster.run import Progress, run_on
from weft.runtime.cluster.storage import Output, check_places
from weft.runtime.cluster.task_graph import TaskGraph
from weft.runtime.cluster.tasks import Task
from weft.runtime.cluster.worker import TaskError, WorkerContext

__all__ = [
    "LOCAL",
    "ClusterError",
    "Dask",
    "Engine",
    "Job",
    "Output",
    "Progress",
    "Ray",
    "Report",
    "RunDirectory",
    "RunRecord",
    "Session",
    "Task",
    "TaskError",
    "TaskGraph",
    "Threads",
    "WorkerContext",
    "check_places",
    "engine_of",
    "recording",
    "run_on",
]

"""Plans on the workers of a cluster: tasks that any engine can run, and the engines."""

from weft.runtime.cluster.directory import LOCAL, Job, RunDirectory
from weft.runtime.cluster.engines.dask import Dask
from weft.runtime.cluster.engines.engine import ClusterError, Engine, Session
from weft.runtime.cluster.engines.local import Threads
from weft.runtime.cluster.engines.ray import Ray
from weft.runtime.cluster.engines.where import engine_of
from weft.runtime.cluster.execute import Progress, run_on
from weft.runtime.cluster.metrics.meter import Report
from weft.runtime.cluster.metrics.record import RunRecord, recording
from weft.runtime.cluster.perform import Program, TaskError
from weft.runtime.cluster.places import Output, check_places
from weft.runtime.cluster.weaving.embedding import Embedding
from weft.runtime.cluster.weaving.task import Task

__all__ = [
    "LOCAL",
    "ClusterError",
    "Dask",
    "Embedding",
    "Engine",
    "Job",
    "Output",
    "Program",
    "Progress",
    "Ray",
    "Report",
    "RunDirectory",
    "RunRecord",
    "Session",
    "Task",
    "TaskError",
    "Threads",
    "check_places",
    "engine_of",
    "recording",
    "run_on",
]

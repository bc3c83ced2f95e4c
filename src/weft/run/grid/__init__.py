"""Plans on the workers of a cluster: tasks that any engine can run, and the engines."""

from weft.run.grid.directory import LOCAL, Job, RunDirectory
from weft.run.grid.engines.dask import Dask
from weft.run.grid.engines.engine import ClusterError, Engine, Session
from weft.run.grid.engines.local import Threads
from weft.run.grid.engines.ray import Ray
from weft.run.grid.engines.where import engine_of
from weft.run.grid.execute import Progress, run_on
from weft.run.grid.metrics.record import RunRecord
from weft.run.grid.metrics.recording import recording
from weft.run.grid.metrics.report import Report
from weft.run.grid.perform import Program, TaskError
from weft.run.grid.places import Output, check_places
from weft.run.grid.weaving.embedding import Embedding
from weft.run.grid.weaving.task import Task

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

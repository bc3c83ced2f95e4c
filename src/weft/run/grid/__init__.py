"""Plans on the workers of a cluster: tasks that any engine can run, and the engines."""

from weft.run.grid.dask import Dask
from weft.run.grid.directory import Job, RunDirectory
from weft.run.grid.embedding import Embedding
from weft.run.grid.engine import ClusterError, Engine, Session
from weft.run.grid.execute import Progress, run_on
from weft.run.grid.local import Threads
from weft.run.grid.perform import Program, TaskError
from weft.run.grid.places import Output
from weft.run.grid.ray import Ray
from weft.run.grid.record import RunRecord
from weft.run.grid.recording import recording
from weft.run.grid.report import Report
from weft.run.grid.task import Task
from weft.run.grid.where import engine_of

__all__ = [
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
    "engine_of",
    "recording",
    "run_on",
]

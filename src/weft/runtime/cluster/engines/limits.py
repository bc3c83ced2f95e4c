"""How many workers there are, and how much memory each may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from weft.errors import WeftError

OWN_MEMORY = 192 << 20
"""A worker has up to so much by itself: the interpreter, the engine, libraries and codecs."""
MOST_WORKERS = 4096
"""The most workers of a run."""
MOST_MEMORY = 1 << 50
"""The most bytes of memory of a worker: 1 PiB."""


ONE_THREAD = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "BLIS_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "BLOSC_NTHREADS",
    ),
    "1",
)
"""A worker is one processor: what its libraries would start beside it takes those of others."""


def check_workers(workers: int | None) -> int:
    """The number of workers: one for each processor, unless it is said."""
    if workers is None:
        return os.cpu_count() or 1
    if workers < 1:
        raise WeftError(f"{workers} workers cannot run anything", hint="one is the least")
    if workers > MOST_WORKERS:
        raise WeftError(f"{workers} workers are too many: a run has at most {MOST_WORKERS}")
    return workers


def check_memory(memory: int | None) -> int | None:
    """The bytes that a worker may use, if somebody said."""
    if memory is not None and memory < OWN_MEMORY:
        raise WeftError(
            f"a worker cannot run in {memory} bytes: it has as many as {OWN_MEMORY} by itself",
            hint="the memory of a worker is in bytes",
        )
    if memory is not None and memory > MOST_MEMORY:
        raise WeftError(f"a worker of {memory} bytes: at most {MOST_MEMORY}")
    return memory


def limit_memory(memory: int) -> None:
    """Have this process hold no more private memory; what asks for more gets a `MemoryError`.

    Linux counts what is asked for, and threads ask for much that they never touch: that stays free.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return
    resource = import_module("resource")  # which Windows has not
    sizes = dict(line.split(":", 1) for line in status.read_text().splitlines())
    asked, touched = (int(sizes[name].split()[0]) << 10 for name in ("VmData", "RssAnon"))
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (asked - touched + memory, most))


@contextmanager
def setting(variables: dict[str, str]) -> Iterator[None]:
    """Variables of the environment, for what is started meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})

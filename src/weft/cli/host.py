"""The resources of this machine, from the system alone: no network, no heavy imports."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import webbrowser
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import NamedTuple

from weft.plan.machines import memory
from weft.values import scaled

TIMEOUT = 1.2
"""Seconds that `nvidia-smi` may take."""
BROWSERS = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
    *("microsoft-edge", "firefox"),
)
_QUERY = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")


class Gpu(NamedTuple):
    """A GPU, as its driver reports it."""

    name: str
    memory: int | None = None
    """Bytes, if the driver reports them."""
    driver: str | None = None

    @property
    def cuda(self) -> int | None:
        """The newest major version of CUDA that the driver supports, 12 or 13."""
        major = int(re.match(r"\d*", self.driver or "")[0] or 0)  # type: ignore[index]
        return 13 if major >= 580 else 12 if major >= 525 else None


def gpus(system: Path = Path("/proc/driver/nvidia/gpus")) -> list[Gpu]:
    """Return the GPUs that `nvidia-smi` reports or, without it, the driver's files."""
    tool = shutil.which("nvidia-smi")
    if tool is not None:
        try:
            ran = subprocess.run(
                [tool, *_QUERY], capture_output=True, text=True, timeout=TIMEOUT, check=True
            )
            return read_gpus(ran.stdout)
        except (OSError, subprocess.SubprocessError):
            pass
    found = (_model(file) for file in sorted(system.glob("*/information")))
    return [Gpu(name) for name in found if name]


def read_gpus(text: str) -> list[Gpu]:
    """Parse the output of `nvidia-smi`.

    >>> read_gpus("NVIDIA H200, 143771, 580.65.06")
    [Gpu(name='NVIDIA H200', memory=150754820096, driver='580.65.06')]
    """
    rows = [line.rsplit(", ", 2) for line in text.splitlines()]
    return [
        Gpu(row[0], int(row[1]) << 20 if row[1].isdigit() else None, row[2])
        for row in rows
        if len(row) == 3
    ]


def _model(file: Path) -> str | None:
    try:
        found = re.search(r"^Model:\s*(.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return found[1].strip() if found else None


class Share(NamedTuple):
    """The total amount of a resource, and how much of it is usable."""

    total: float
    usable: float


def processors() -> Share:
    """Return the processors of the host, and those that this process may use."""
    total = os.cpu_count() or 1
    affinity = getattr(os, "sched_getaffinity", None)
    usable: float = len(affinity(0)) if affinity is not None else total
    quota, _, period = (_first_line(Path("/sys/fs/cgroup/cpu.max")) or "max").partition(" ")
    if quota.isdigit() and period.isdigit():
        usable = min(usable, int(quota) / int(period))
    return Share(total, usable)


def ram() -> Share:
    """Return the bytes of memory, and those that are free."""
    total = memory()
    limit = _first_line(Path("/sys/fs/cgroup/memory.max")) or ""
    taken = _first_line(Path("/sys/fs/cgroup/memory.current")) or ""
    free = _available()
    if limit.isdigit() and int(limit) < total:
        total = int(limit)
        free = min(free, total - int(taken)) if taken.isdigit() else free
    return Share(total, min(free, total))


def _available() -> float:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return inf
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024.0 if found else inf


def _first_line(file: Path) -> str | None:
    try:
        return file.read_text(encoding="ascii").partition("\n")[0].strip()
    except OSError:
        return None


class DiskSpace(NamedTuple):
    """A folder for files."""

    path: str
    free: int | None
    writable: bool


def places() -> dict[str, DiskSpace]:
    """Return the current folder, the temporary one, and shared memory if there is any."""
    found = {"here": str(Path.cwd()), "temporary": tempfile.gettempdir()}
    if Path("/dev/shm").is_dir():
        found["shared memory"] = "/dev/shm"
    return {name: _place(path) for name, path in found.items()}


def _place(path: str) -> DiskSpace:
    try:
        return DiskSpace(path, shutil.disk_usage(path).free, os.access(path, os.W_OK))
    except OSError:
        return DiskSpace(path, None, False)


def browser() -> str | None:
    """Return a browser for reports: its command, or the system's default."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None and sys.platform in ("darwin", "win32"):
        return type(webbrowser.get()).__name__
    return found


class Cluster(NamedTuple):
    """The cluster that an engine would connect to: its address, where that is from, its state."""

    address: str
    source: str
    answers: bool | None
    """None if it was not asked: it may be on another machine."""


RAY_FILE = Path(tempfile.gettempdir()) / "ray" / "ray_current_cluster"
VARIABLES = {"ray": ("RAY_ADDRESS",), "dask": ("DASK_SCHEDULER_ADDRESS",)}


def cluster(engine: str, environment: Mapping[str, str], file: Path = RAY_FILE) -> Cluster | None:
    """Return the cluster an engine would connect to: from a variable, or from Ray's own file."""
    for name in VARIABLES[engine]:
        if environment.get(name):
            return Cluster(environment[name], name, None)
    address = _first_line(file) if engine == "ray" else None
    return Cluster(address, "started here", _answers(address)) if address else None


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    if not port.isdigit() or not _is_here(host):
        return False
    try:
        with socket.create_connection((host, int(port)), timeout=0.2):
            return True
    except OSError:
        return False


def _is_here(host: str) -> bool:
    """Return whether an address belongs to this machine: no other is contacted."""
    try:
        with socket.socket() as probe:
            probe.bind((host, 0))
            return True
    except OSError:
        return False


def amount(size: float | None) -> str:
    """Return bytes with a unit.

    >>> amount(150754820096), amount(64 << 20), amount(None)
    ('151 GB', '67.1 MB', 'unknown')
    """
    return "unknown" if size is None or size == inf else scaled(size, "B")

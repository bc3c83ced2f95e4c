"""`weft doctor`: installed extras, the resources of this machine, and problems."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import weft
from weft.cli import host
from weft.cli.files import print_result
from weft.cli.host import amount
from weft.cli.parser import Commands, add_command, add_flag
from weft.values import counted

if TYPE_CHECKING:
    from packaging.requirements import Requirement

PACKAGE = "weft"
EXAMPLES = """\
examples:
  weft doctor
  weft doctor --json
"""
PURPOSES = {
    "run": "tensors that compute on shards, plans that run in one process",
    "torch": "plans on the ranks of torch.distributed, DTensor placements",
    "jax": "JAX functions in, as StableHLO; NamedShardings out",
    "ray": "plans on a Ray cluster",
    "dask": "plans on a Dask cluster",
    "otel": "runs as OpenTelemetry spans and metrics",
    "search": "the search of wide graphs, by NSGA-II; HiGHS as a measure",
    "store": "sharded Zarr: zstd, blosc, lz4, object stores, TIFF",
    "ckks": "networks on ciphertexts, by Microsoft SEAL",
    "ttmesh": "buffers on meshes of chips",
    "cuda12": "the store on a GPU, CUDA 12",
    "cuda13": "the store on a GPU, CUDA 13",
    "docs": "what `make docs` needs",
    "cli": "completion scripts for shells; version checks of `weft doctor`",
    "demo": "what `make demo` shows",
    "test": "what `make test` needs",
    "beside": "what `make beside` compares with",
    "bench": "what `make bench` compares with",
    "dev": "what `make hooks` needs",
}
"""The purpose of each extra, in the order of the report."""
CODECS = {
    "zstd": "zstandard",
    "gzip": None,
    "blosc-lz4": "numcodecs",
    "blosc-zstd": "numcodecs",
    "lz4": "numcodecs",
    "crc32c": "google-crc32c",
}
"""The codecs of the store and the package that each needs; None for the standard library."""
CUPY = {12: "cupy-cuda12x", 13: "cupy-cuda13x"}
LEAST_FREE = 1 << 30
"""Bytes of memory or disk below which a problem is reported."""


class Need(NamedTuple):
    """A package that an extra needs, and its installed version."""

    name: str
    wanted: str
    """The versions that are needed, as in `>=2.0,<3`; empty for any."""
    version: str | None
    """The installed version, or None."""

    @property
    def is_met(self) -> bool:
        """Whether a suitable version is installed."""
        if self.version is None:
            return False
        from packaging.specifiers import SpecifierSet

        return SpecifierSet(self.wanted).contains(self.version, prereleases=True)


class Extra(NamedTuple):
    """An extra, and the packages that it needs."""

    name: str
    needs: tuple[Need, ...]

    @property
    def missing(self) -> tuple[Need, ...]:
        """The packages that are not installed in a suitable version."""
        return tuple(need for need in self.needs if not need.is_met)


@cache
def extras() -> dict[str, Extra]:
    """Return the extras by name; empty if Weft is not installed as a package, or packaging not."""
    try:
        from packaging.requirements import Requirement

        names = metadata.metadata(PACKAGE).get_all("Provides-Extra") or []
    except (ImportError, metadata.PackageNotFoundError):
        return {}
    requirements = [Requirement(line) for line in metadata.requires(PACKAGE) or []]
    return {name: Extra(name, tuple(_needs(name, requirements).values())) for name in sorted(names)}


def _needs(extra: str, requirements: list[Requirement]) -> dict[str, Need]:
    """Return the packages of an extra and of the extras that it includes, by name."""
    needs: dict[str, Need] = {}
    for one in requirements:
        if one.marker is None or not one.marker.evaluate({"extra": extra}):
            continue
        if one.name == PACKAGE:
            for other in sorted(one.extras):
                needs |= _needs(other, requirements)
        else:
            needs[one.name] = Need(one.name, str(one.specifier), installed(one.name))
    return needs


def installed(package: str) -> str | None:
    """Return the installed version of a package, without importing it.

    >>> installed("no-such-package") is None
    True
    """
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


class Health(NamedTuple):
    """The state of this machine."""

    extras: dict[str, Extra]
    gpus: list[host.Gpu]
    processors: host.Share
    memory: host.Share
    places: dict[str, host.DiskSpace]
    clusters: dict[str, host.Cluster | None]
    browser: str | None

    @property
    def problems(self) -> list[str]:
        """The problems, one line each."""
        return [
            *_package_problems(self),
            *_version_problems(self),
            *_gpu_problems(self),
            *_resource_problems(self),
        ]


def add_to(commands: Commands) -> None:
    """Add the subcommand."""
    summary = "print what is installed, what this machine has, and problems"
    about = (
        "Print which extras, GPUs, engines and codecs are there, what the missing ones are for, "
        "and problems. Nothing leaves this machine."
    )
    add_flag(add_command(commands, "doctor", run, summary, about, EXAMPLES), "--json", "print JSON")


def run(args: argparse.Namespace) -> None:
    """Print the state of this machine."""
    health = inspect_machine()
    print_result(args, lambda: describe(health), lambda: "\n".join(report(health)))


def inspect_machine() -> Health:
    """Return the state of this machine."""
    return Health(
        extras(),
        host.gpus(),
        host.processors(),
        host.ram(),
        host.places(),
        {engine: host.cluster(engine, os.environ) for engine in host.VARIABLES},
        host.browser(),
    )


# -- problems -------------------------------------------------------------------------------------


def _package_problems(health: Health) -> Iterator[str]:
    there = installed(PACKAGE)
    if there is None:
        yield "Weft is not installed as a package, so its extras are unknown: pip install ."
    elif there != weft.__version__:
        yield f"Weft {weft.__version__} is running, but {there} is installed: install it again"
    elif installed("packaging") is None:
        yield "extras cannot be checked without packaging: pip install 'weft[cli]'"


def _version_problems(health: Health) -> Iterator[str]:
    """Yield each package that is installed in an unsuitable version."""
    seen = set[str]()
    for extra in health.extras.values():
        for need in extra.missing:
            if need.version is not None and need.name not in seen:
                seen.add(need.name)
                yield (
                    f"{need.name} {need.version} is installed, but {need.wanted} is needed: "
                    f"{_install(extra)}"
                )


def _gpu_problems(health: Health) -> Iterator[str]:
    cupy = [cuda for cuda, package in CUPY.items() if installed(package)]
    if len(cupy) > 1:
        yield "two builds of CuPy are installed and conflict: pip uninstall one"
    if cupy and not health.gpus:
        yield "CuPy is installed, but the driver reports no GPU"
    for cuda in cupy:
        newest = min((gpu.cuda or cuda for gpu in health.gpus), default=cuda)
        if newest < cuda:
            yield (
                f"CuPy is built for CUDA {cuda}, but the driver has CUDA {newest}: "
                f"pip install 'weft[cuda{newest}]'"
            )
    torch = installed("torch") or ""
    if health.gpus and torch.endswith("+cpu"):
        yield f"torch {torch} does not use the GPU: install a build for CUDA"


def _resource_problems(health: Health) -> Iterator[str]:
    if health.memory.usable < LEAST_FREE:
        yield f"{amount(health.memory.usable)} of memory is free: stop other programs"
    for name, place in health.places.items():
        if name != "shared memory" and not place.writable:
            yield f"{place.path} is not writable"
        elif name != "shared memory" and place.free is not None and place.free < LEAST_FREE:
            yield f"{place.path} has {amount(place.free)} free: delete something"
    shared = health.places.get("shared memory")
    if installed("ray") and shared and shared.free is not None and shared.free < LEAST_FREE:
        yield f"{shared.path}, where Ray stores objects, has {amount(shared.free)} free"
    for engine, cluster in health.clusters.items():
        if cluster is not None and cluster.answers is False:
            yield f"the {engine} cluster at {cluster.address} does not answer"


# -- the report -----------------------------------------------------------------------------------


def report(health: Health) -> Iterator[str]:
    """Yield the lines to print: `+` is there, `-` is not, `!` is a problem."""
    yield f"Weft {weft.__version__}, Python {platform.python_version()}, {_system()}"
    yield f"  at {_home()}, by {sys.executable}"
    yield from ("", "extras:")
    yield from _extra_lines(health)
    yield from ("", "this machine:")
    rows = [*_machine_rows(health)]
    wide = max(len(name) for _, name, _ in rows)
    yield from (f"  {mark} {name:{wide}}  {text}" for mark, name, text in rows)
    problems = health.problems
    yield ""
    yield counted(len(problems), "problem") + ":" if problems else "no problems"
    yield from (f"  ! {problem}" for problem in problems)


def _extra_lines(health: Health) -> Iterator[str]:
    wide = max(map(len, health.extras), default=0)
    order = [*PURPOSES, *health.extras]
    for extra in sorted(health.extras.values(), key=lambda one: order.index(one.name)):
        mark = "-" if extra.missing else "+"
        yield f"  {mark} {extra.name:{wide}}  {_extra_text(extra)}"


def _extra_text(extra: Extra) -> str:
    if not extra.missing:
        there = [f"{need.name} {need.version}" for need in extra.needs]
        return _few(there)
    gives = PURPOSES.get(extra.name, _few([need.name for need in extra.needs]))
    lacking = _few([need.name for need in extra.missing])
    return f"{gives}; missing {lacking}: {_install(extra)}"


def _few(names: list[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _install(extra: Extra) -> str:
    return f"pip install 'weft[{extra.name}]'"


def _machine_rows(health: Health) -> Iterator[tuple[str, str, str]]:
    cores, ram = health.processors, health.memory
    usable = f"{cores.usable:g}" + (f" of {cores.total:g}" if cores.usable < cores.total else "")
    yield "+", "processors", usable
    yield "+", "memory", f"{amount(ram.total)}, {amount(ram.usable)} free"
    for gpu in health.gpus:
        cuda = f", CUDA {gpu.cuda}" if gpu.cuda else ""
        driver = f", driver {gpu.driver}{cuda}" if gpu.driver else ""
        yield "+", "GPU", f"{gpu.name}, {amount(gpu.memory)}{driver}"
    if not health.gpus:
        yield "-", "GPU", "no NVIDIA driver reports one"
    for name, place in health.places.items():
        free = f"{place.path}, {amount(place.free)} free"
        yield ("+", name, free) if place.writable else ("!", name, f"{free}, not writable")
    for engine, there in engines(health).items():
        yield "+" if there["there"] else "-", f"engine {engine}", _engine_text(there)
    known = codecs()
    yield "+", "codecs", ", ".join(name for name, there in known.items() if there)
    lacking = ", ".join(name for name, there in known.items() if not there)
    if lacking:
        yield "-", "codecs", f"{lacking}: pip install 'weft[store]'"
    else:
        yield _compiled_code()
    seal = installed("tenseal")
    yield ("+", "SEAL", f"in TenSEAL {seal}") if seal else ("-", "SEAL", "pip install 'weft[ckks]'")
    where = health.browser
    yield ("+", "browser", where) if where else ("-", "browser", "none found to open reports")


def _compiled_code() -> tuple[str, str, str]:
    from weft.store.native import why_not

    reason = why_not()
    if reason is None:
        return "+", "compiled code", "arrays are written and read by it"
    return "-", "compiled code", f"arrays are written and read without: {reason}"


def _engine_text(there: dict[str, Any]) -> str:
    words = [there["version"] or "in this process"] if there["there"] else [there["install"]]
    if there["cluster"]:
        words.append(f"a cluster at {there['cluster']['address']} ({there['cluster']['source']})")
    return ", ".join(words)


def engines(health: Health) -> dict[str, dict[str, Any]]:
    """Return the engines that run plans on workers, and whether each is installed."""
    needed = {"threads": "numpy", "ray": "ray", "dask": "distributed"}
    extra = {"threads": "run", "ray": "ray", "dask": "dask"}
    result: dict[str, dict[str, Any]] = {}
    for name, package in needed.items():
        version, cluster = installed(package), health.clusters.get(name)
        result[name] = {
            "there": version is not None,
            "version": None if name == "threads" else version,
            "install": f"pip install 'weft[{extra[name]}]'",
            "cluster": None if cluster is None else cluster._asdict(),
        }
    return result


def codecs() -> dict[str, bool]:
    """Return the codecs of the store, and whether each can be used."""
    return {
        name: package is None or installed(package) is not None for name, package in CODECS.items()
    }


def _system() -> str:
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def _home() -> str:
    return str(Path(weft.__file__).parent)


def describe(health: Health) -> dict[str, Any]:
    """Return the state as plain data."""
    return {
        "weft": weft.__version__,
        "python": platform.python_version(),
        "system": _system(),
        "package": _home(),
        "executable": sys.executable,
        "extras": {
            name: {
                "there": not extra.missing,
                "gives": PURPOSES.get(name),
                "install": _install(extra),
                "packages": {
                    need.name: {"wanted": need.wanted, "version": need.version}
                    for need in extra.needs
                },
            }
            for name, extra in health.extras.items()
        },
        "processors": health.processors._asdict(),
        "memory": {
            name: int(size) if size < inf else None
            for name, size in health.memory._asdict().items()
        },
        "gpus": [{**gpu._asdict(), "cuda": gpu.cuda} for gpu in health.gpus],
        "places": {name: place._asdict() for name, place in health.places.items()},
        "engines": engines(health),
        "codecs": codecs(),
        "seal": installed("tenseal"),
        "browser": health.browser,
        "problems": health.problems,
    }

"""`weft doctor`: what is installed, what this machine has, and what is wrong."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import weft
from weft.cli import host
from weft.cli.extras import PACKAGE, Extra, extras, installed
from weft.cli.files import print_json
from weft.cli.host import amount
from weft.draw import say
from weft.values import counted

if TYPE_CHECKING:
    from argparse import _SubParsersAction

EXAMPLES = """\
examples:
  weft doctor
  weft doctor --json
"""
GIVES = {
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
    "demo": "what `make demo` shows",
    "docs": "what `make docs` needs",
    "test": "what `make test` needs",
    "bench": "what `make bench` compares with",
    "dev": "what `make hooks` needs",
}
"""What each extra is for; which there are, the package's metadata says."""
FOR_MAKERS = ("demo", "test", "bench", "dev")
CODECS = {
    "zstd": "zstandard",
    "gzip": None,
    "blosc-lz4": "numcodecs",
    "blosc-zstd": "numcodecs",
    "lz4": "numcodecs",
    "crc32c": "google-crc32c",
}
"""The codecs of the store and the package that each needs; None for Python itself."""
CUPY = {12: "cupy-cuda12x", 13: "cupy-cuda13x"}
LEAST = 1 << 30
"""So many bytes should be free."""


class Health(NamedTuple):
    """All that was found."""

    extras: dict[str, Extra]
    gpus: list[host.Gpu]
    processors: host.Share
    memory: host.Share
    places: dict[str, host.Place]
    clusters: dict[str, host.Cluster | None]
    browser: str | None

    @property
    def problems(self) -> list[str]:
        """What is wrong, a line each."""
        return [*_package(self), *_versions(self), *_gpu_faults(self), *_room(self)]


def add_to(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "doctor",
        help="what is installed, what this machine has, what is wrong",
        description="Say which extras, GPUs, engines and codecs are there, what each that is "
        "missing would give, and what is wrong. Nothing leaves this machine.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Look, and print what was found."""
    found = look()
    if args.json:
        print_json(describe(found))
    else:
        say("\n".join(report(found)), sys.stdout)


def look() -> Health:
    """What there is."""
    return Health(
        extras(),
        host.gpus(),
        host.processors(),
        host.ram(),
        host.places(),
        {engine: host.cluster(engine, os.environ) for engine in host.VARIABLES},
        host.browser(),
    )


# -- what is wrong --------------------------------------------------------------------------------


def _package(found: Health) -> Iterator[str]:
    there = installed(PACKAGE)
    if there is None:
        yield "Weft is not installed as a package, so extras are not known: pip install ."
    elif there != weft.__version__:
        yield f"Weft {weft.__version__} runs, and {there} is installed: install it again"


def _versions(found: Health) -> Iterator[str]:
    """Packages in versions that will not do, each once."""
    seen = set[str]()
    for extra in found.extras.values():
        for need in extra.missing:
            if need.version is not None and need.name not in seen:
                seen.add(need.name)
                yield (
                    f"{need.name} {need.version} is installed, and {need.wanted} is wanted: "
                    f"{_install(extra)}"
                )


def _gpu_faults(found: Health) -> Iterator[str]:
    cupy = [cuda for cuda, package in CUPY.items() if installed(package)]
    if len(cupy) > 1:
        yield "two versions of CuPy are installed, which harm each other: pip uninstall one"
    if cupy and not found.gpus:
        yield "CuPy is installed, and there is no GPU that a driver knows"
    for cuda in cupy:
        newest = min((gpu.cuda or cuda for gpu in found.gpus), default=cuda)
        if newest < cuda:
            yield (
                f"CuPy is for CUDA {cuda}, and the driver runs CUDA {newest}: "
                f"pip install 'weft[cuda{newest}]'"
            )
    torch = installed("torch") or ""
    if found.gpus and torch.endswith("+cpu"):
        yield f"torch {torch} does not use the GPU: install a build for CUDA"


def _room(found: Health) -> Iterator[str]:
    if found.memory.usable < LEAST:
        yield f"{amount(found.memory.usable)} of memory is free: stop something"
    for name, place in found.places.items():
        if name != "shared memory" and not place.writable:
            yield f"nothing can be written to {place.path}"
        elif name != "shared memory" and place.free is not None and place.free < LEAST:
            yield f"{place.path} has {amount(place.free)} free: make room"
    shared = found.places.get("shared memory")
    if installed("ray") and shared and shared.free is not None and shared.free < LEAST:
        yield f"{shared.path} has {amount(shared.free)} free, where Ray keeps its blocks"
    for engine, cluster in found.clusters.items():
        if cluster is not None and cluster.answers is False:
            yield f"a {engine} cluster was at {cluster.address} and does not answer"


# -- the report -----------------------------------------------------------------------------------


def report(found: Health) -> Iterator[str]:
    """The lines that are printed: + is there, - is not, ! is wrong."""
    yield f"Weft {weft.__version__}, Python {platform.python_version()}, {_system()}"
    yield f"  at {_home()}, by {sys.executable}"
    yield from ("", "extras:")
    yield from _extra_lines(found)
    yield from ("", "this machine:")
    rows = [*_machine_rows(found)]
    wide = max(len(name) for _, name, _ in rows)
    yield from (f"  {mark} {name:{wide}}  {text}" for mark, name, text in rows)
    problems = found.problems
    yield ""
    yield counted(len(problems), "problem") + ":" if problems else "no problems"
    yield from (f"  ! {problem}" for problem in problems)


def _extra_lines(found: Health) -> Iterator[str]:
    wide = max(map(len, found.extras), default=0)
    order = sorted(found.extras.values(), key=lambda one: (one.name in FOR_MAKERS, *_rank(one)))
    for extra in order:
        mark = "-" if extra.missing else "+"
        yield f"  {mark} {extra.name:{wide}}  {_extra_text(extra)}"


def _rank(extra: Extra) -> tuple[int, str]:
    names = list(GIVES)
    return (names.index(extra.name) if extra.name in names else len(names), extra.name)


def _extra_text(extra: Extra) -> str:
    if not extra.missing:
        there = [f"{need.name} {need.version}" for need in extra.needs]
        return _few(there)
    gives = GIVES.get(extra.name, _few([need.name for need in extra.needs]))
    lacking = _few([need.name for need in extra.missing])
    return f"{gives}; lacks {lacking}: {_install(extra)}"


def _few(names: list[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _install(extra: Extra) -> str:
    return f"pip install 'weft[{extra.name}]'"


def _machine_rows(found: Health) -> Iterator[tuple[str, str, str]]:
    cores, ram = found.processors, found.memory
    usable = f"{cores.usable:g}" + (f" of {cores.total:g}" if cores.usable < cores.total else "")
    yield "+", "processors", usable
    yield "+", "memory", f"{amount(ram.total)}, {amount(ram.usable)} free"
    for gpu in found.gpus:
        cuda = f", CUDA {gpu.cuda}" if gpu.cuda else ""
        driver = f", driver {gpu.driver}{cuda}" if gpu.driver else ""
        yield "+", "GPU", f"{gpu.name}, {amount(gpu.memory)}{driver}"
    if not found.gpus:
        yield "-", "GPU", "none that a driver of NVIDIA knows"
    for name, place in found.places.items():
        free = f"{place.path}, {amount(place.free)} free"
        yield ("+", name, free) if place.writable else ("!", name, f"{free}, not writable")
    for engine, there in engines(found).items():
        yield "+" if there["there"] else "-", f"engine {engine}", _engine_text(there)
    known = codecs()
    yield "+", "codecs", ", ".join(name for name, there in known.items() if there)
    lacking = ", ".join(name for name, there in known.items() if not there)
    if lacking:
        yield "-", "codecs", f"{lacking}: pip install 'weft[store]'"
    seal = installed("tenseal")
    yield ("+", "SEAL", f"by TenSEAL {seal}") if seal else ("-", "SEAL", "pip install 'weft[ckks]'")
    where = found.browser
    yield ("+", "browser", where) if where else ("-", "browser", "none, to look at reports with")


def _engine_text(there: dict[str, Any]) -> str:
    words = [there["version"] or "in this process"] if there["there"] else [there["install"]]
    if there["cluster"]:
        words.append(f"a cluster at {there['cluster']['address']} ({there['cluster']['source']})")
    return ", ".join(words)


def engines(found: Health) -> dict[str, dict[str, Any]]:
    """What runs plans on workers, and whether it is there."""
    needed = {"threads": "numpy", "ray": "ray", "dask": "distributed"}
    extra = {"threads": "run", "ray": "ray", "dask": "dask"}
    said: dict[str, dict[str, Any]] = {}
    for name, package in needed.items():
        version, cluster = installed(package), found.clusters.get(name)
        said[name] = {
            "there": version is not None,
            "version": None if name == "threads" else version,
            "install": f"pip install 'weft[{extra[name]}]'",
            "cluster": None if cluster is None else cluster._asdict(),
        }
    return said


def codecs() -> dict[str, bool]:
    """The codecs of the store, and whether each can be used."""
    return {
        name: package is None or installed(package) is not None for name, package in CODECS.items()
    }


def _system() -> str:
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def _home() -> str:
    return str(Path(weft.__file__).parent)


def describe(found: Health) -> dict[str, Any]:
    """What was found, as plain data."""
    return {
        "weft": weft.__version__,
        "python": platform.python_version(),
        "system": _system(),
        "package": _home(),
        "executable": sys.executable,
        "extras": {name: _extra_data(extra) for name, extra in found.extras.items()},
        "processors": found.processors._asdict(),
        "memory": {"total": _finite(found.memory.total), "usable": _finite(found.memory.usable)},
        "gpus": [{**gpu._asdict(), "cuda": gpu.cuda} for gpu in found.gpus],
        "places": {name: place._asdict() for name, place in found.places.items()},
        "engines": engines(found),
        "codecs": codecs(),
        "seal": installed("tenseal"),
        "browser": found.browser,
        "problems": found.problems,
    }


def _extra_data(extra: Extra) -> dict[str, Any]:
    return {
        "there": not extra.missing,
        "gives": GIVES.get(extra.name),
        "install": _install(extra),
        "packages": {
            need.name: {"wanted": need.wanted, "version": need.version} for need in extra.needs
        },
    }


def _finite(size: float) -> int | None:
    return int(size) if size != float("inf") else None

"""What commands do with the record of a run on a grid: show it, and calibrate a machine by it."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.files import print_json, reading
from weft.draw import Drawing, say, show, to_text
from weft.errors import WeftError
from weft.lang.field import read_text

if TYPE_CHECKING:
    import argparse

    from weft.plan import Link
    from weft.runtime.cluster.metrics.calibration import Calibration
    from weft.runtime.cluster.metrics.record import RunRecord
    from weft.runtime.cluster.metrics.task_record import Total


def read_run(path: Path) -> RunRecord:
    """The record in a file."""
    text, kind = read_text(path), _grid("record").RunRecord
    with reading(path, text, "run"):
        record: RunRecord = kind.from_json(text)
    return record


def show_run(args: argparse.Namespace) -> None:
    """The table of a run and its timeline; the timeline alone where it is written to a file."""
    record, output = read_run(Path(args.mesh)), args.output
    if output is not None and output.suffix not in _RENDER:
        raise WeftError(f"cannot write {output}: its name ends in neither .svg nor .txt")
    if args.json:
        print_json(describe(record))
    elif args.svg:
        say(_svg(record), sys.stdout)
    elif output is None:
        say(f"{record}\n", sys.stdout)
        show(_bare(record))
    if output is not None:
        output.write_text(_RENDER[output.suffix](record) + "\n", encoding="utf-8")
        say(f"wrote {output}", sys.stderr if args.json or args.svg else sys.stdout)


def _svg(record: RunRecord) -> str:
    drawn: str = _grid("timeline_svg").timeline_svg(record)
    return drawn


def _text(record: RunRecord) -> str:
    return f"{record}\n\n{to_text(_bare(record))}"


def _bare(record: RunRecord) -> Drawing:
    """The timeline without what the table says as well."""
    return record.drawing()._replace(title="", notes=())


_RENDER = {".svg": _svg, ".txt": _text}


def describe(record: RunRecord) -> dict[str, Any]:
    """A run as plain data: what its tasks took together."""
    return {
        "engine": record.engine,
        "workers": record.workers,
        "mesh": str(record.mesh),
        "seconds": record.seconds,
        "busy": record.busy,
        "overhead": record.overhead,
        "predicted": record.predicted,
        "bound": record.bound,
        "exact": record.is_exact,
        "again": len(record.again),
        "missing": record.missing,
        "total": record.total._asdict(),
        "by_operator": _totals(record.by_operator),
        "by_worker": _totals(record.by_worker),
    }


def _totals(totals: dict[str, Total]) -> dict[str, Any]:
    return {name: total._asdict() for name, total in totals.items()}


def calibrate_run(args: argparse.Namespace) -> None:
    """A machine by the measurements of a run: printed, and written where that is asked for."""
    if args.cells is not None or args.quick:
        raise WeftError("--cells and --quick say how this host is measured; --from measures none")
    found: Calibration = _grid("calibration").calibrate(read_run(args.source))
    if args.json:
        print_json({**found.machine.to_data(), "tasks": dict(found.tasks)})
    else:
        say(table(found), sys.stdout)
    if args.output is not None:
        found.machine.save(args.output)
        say(f"wrote {args.output}", sys.stderr if args.json else sys.stdout)


def table(found: Calibration) -> str:
    """What was measured, a line each, and in how many tasks."""
    machine, tasks = found.machine, found.tasks
    rows = [
        (one, f"{machine.flops[one] / 1e9:.3g} Gflop/s") for one in machine.flops if one in tasks
    ]
    rows.append(("memory", f"{machine.memory_bandwidth / 1e9:.3g} GB/s"))
    for name in tasks:
        if name.startswith("links"):
            axis = name.partition(".")[2]
            rows.append((name, _told(machine.link(axis) if axis else machine.rest)))
    if "storage" in tasks:
        rows.append(("storage", _told(machine.storage)))
    wide, high = (max(len(row[place]) for row in rows) for place in (0, 1))
    lines = [f"{name:{wide}}  {value:{high}}  {tasks[name]} tasks" for name, value in rows]
    timed = ", ".join(machine.operations.get("grid", {})) or "none"
    return "\n".join([f"{machine.name}; for each:", *lines, f"operators with times: {timed}"])


def _told(link: Link) -> str:
    return f"{link.latency * 1e6:.3g} us, {link.bandwidth / 1e9:.3g} GB/s"


def _grid(module: str) -> Any:
    try:
        return import_module(f"weft.runtime.cluster.metrics.{module}")
    except ImportError as error:
        raise WeftError(
            f"the record of a run cannot be read: {error}", hint="pip install 'weft[run]'"
        ) from None

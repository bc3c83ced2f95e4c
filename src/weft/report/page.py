"""`render` and `write`: the report as one HTML file that needs nothing else."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import compress

from weft.errors import WeftError
from weft.plan import Cost, Machine, ParetoFront, Plan
from weft.report.bundle import asset, bundle
from weft.report.data import GRAINS, Subject, front_of, report_data

if TYPE_CHECKING:
    from weft.runtime.cluster import RunRecord

LARGEST = 2_000_000
"""A page has fewer bytes."""
PLAIN = 400_000
"""Data of up to so many bytes are written as they are; above, they are deflated."""
STYLES = ("base.css", "graph.css", "panel.css", "views.css")


def write(
    path: str | PathLike[str],
    plan: Plan | Cost | None = None,
    *,
    run: RunRecord | None = None,
    front: ParetoFront | Sequence[Plan | Cost] | None = None,
    ckks: Any = None,
    store: Any = None,
    title: str = "",
    machine: Machine | None = None,
) -> Path:
    """Write the report of a plan, a run, a front, a ciphertext plan or a store; of all of them.

    `front` is what `search` gave, or plans. `ckks` is a plan of `weft.ckks`, or the JSON that
    `weft ckks plan --json` printed. `store` is an open array, its folder or its address, or a list
    of them. Plans without a machine are priced on `machine`. The page is one file below 2 MB.

    >>> import tempfile
    >>> from weft import propagate, trace
    >>> graph = trace(lambda x: x + x, (8,), meshes=['@m = <["x"=2]>'])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = write(f"{folder}/report.html", Plan.of(propagate(graph)))
    ...     print(page.name, page.stat().st_size < 2_000_000)
    report.html True
    """
    subject = Subject(_front(plan, front, machine), run, ckks, _listed(store), title)
    place = Path(path)
    place.write_text(render(subject), encoding="utf-8")
    return place


def _front(
    plan: Plan | Cost | None,
    front: ParetoFront | Sequence[Plan | Cost] | None,
    machine: Machine | None,
) -> ParetoFront | None:
    if plan is not None and front is not None:
        raise WeftError("a report is about a plan or about a front", hint="add it to the front")
    if isinstance(front, ParetoFront):
        return front
    plans = [plan] if plan is not None else list(front or ())
    return front_of(plans, machine) if plans else None


def _listed(store: Any) -> tuple[Any, ...]:
    if store is None:
        return ()
    is_many = isinstance(store, Iterable) and not isinstance(store, str | PathLike)
    return tuple(store) if is_many and not hasattr(store, "metadata") else (store,)


def render(subject: Subject) -> str:
    """The page, told as finely as fits."""
    for grain in GRAINS:
        page = page_of(report_data(subject, grain))
        if len(page.encode()) < LARGEST:
            return page
    plans = 0 if subject.front is None else len(subject.front)
    raise WeftError(
        f"the report of {plans} plans has {len(page.encode())} B, and {LARGEST} B are the most",
        hint="give fewer plans",
    )


def page_of(data: dict[str, Any]) -> str:
    """The page of what `report_data` made."""
    script = bundle("main")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    parts = {
        "title": escape(data["title"]),
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        "style": "\n".join(map(asset, STYLES)),
        "data": embedded(data),
        "script": script,
    }
    pieces = asset("page.html").split("%%")
    return "".join(parts[piece] if n % 2 else piece for n, piece in enumerate(pieces))


def embedded(data: dict[str, Any]) -> str:
    r"""Data as an element that no text in them can end, deflated if they are many.

    >>> embedded({"name": "</script>"})
    '<script type="application/json" id="data">{"name":"\\u003c/script>"}</script>'
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    if len(text) <= PLAIN:
        return f'<script type="application/json" id="data">{text}</script>'
    packed = b64encode(compress(text.encode(), 9)).decode()
    return f'<script type="text/plain" id="packed">{packed}</script>'

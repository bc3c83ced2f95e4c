"""`render` and `write`: the report as one self-contained HTML file."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from html import escape
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import compress

from weft.errors import WeftError
from weft.plan import Cost, Machine, ParetoFront, Plan
from weft.report.data import DETAILS, Subject, front_of, report_data

if TYPE_CHECKING:
    from weft.runtime.cluster import RunRecord

MOST_BYTES = 2_000_000
"""The most bytes of a page."""
MOST_PLAIN_BYTES = 400_000
"""Larger data are compressed."""
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
    """Write the report of any of a plan, a run, a front, a ciphertext plan and stores.

    `front` is the result of `search`, or plans. `ckks` is a plan of `weft.ckks`, or the output of
    `weft ckks plan --json`. `store` is an open array, its folder or its address, or a list of
    these. Plans without a machine are priced on `machine`. The page has less than 2 MB.

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
        raise WeftError("give a report either a plan or a front", hint="add the plan to the front")
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
    """Return the page, with as much detail as fits."""
    for detail in DETAILS:
        page = page_of(report_data(subject, detail))
        if len(page.encode()) < MOST_BYTES:
            return page
    plans = 0 if subject.front is None else len(subject.front)
    raise WeftError(
        f"a report of {plans} plans has {len(page.encode())} B; at most {MOST_BYTES} B fit",
        hint="give fewer plans",
    )


def page_of(data: dict[str, Any]) -> str:
    """Return the page with the given data."""
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
    r"""Return data as a script element that no text in them can end, compressed if large.

    >>> embedded({"name": "</script>"})
    '<script type="application/json" id="data">{"name":"\\u003c/script>"}</script>'
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    if len(text) <= MOST_PLAIN_BYTES:
        return f'<script type="application/json" id="data">{text}</script>'
    packed = b64encode(compress(text.encode(), 9)).decode()
    return f'<script type="text/plain" id="packed">{packed}</script>'


# -- assets ---------------------------------------------------------------------------------------

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function\*?|const|class)\s+(\w+))", re.MULTILINE)


def asset(name: str) -> str:
    """Return the text of an asset."""
    return (files("weft.report") / "assets" / name).read_text(encoding="utf-8")


def bundle(main: str) -> str:
    """Return a module and all that it imports as one script.

    A module becomes a function that returns its exports, since a page in one file has nothing to
    import from. Only `import { a, b } from "./x.js"` and `export` before a declaration, each on a
    line of its own, are supported.
    """
    return "".join(['"use strict";\n', *_ordered(main, {}, ())])


def _ordered(name: str, done: dict[str, bool], above: tuple[str, ...]) -> Iterator[str]:
    if name in above:
        raise WeftError(f"modules import each other: {' -> '.join([*above, name])}")
    if name in done:
        return
    text = asset(f"{name}.js")
    for _, other in _IMPORT.findall(text):
        yield from _ordered(other, done, (*above, name))
    done[name] = True
    yield as_function(name, text)


def as_function(name: str, text: str) -> str:
    r"""Return a module as a function that is called at once.

    >>> print(as_function("a", 'import { b } from "./c.js";\nexport const d = b;\n'))
    const module_a = (() => {
    const { b } = module_c;
    const d = b;
    return { d };
    })();
    """
    exported = [name for _, name in _EXPORT.findall(text)]
    body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const {\1} = module_\2;", text)).strip()
    if re.search(r"^(import|export)\b", body, re.MULTILINE):
        raise WeftError(f"{name}.js has an unsupported import or export")
    return f"const module_{name} = (() => {{\n{body}\nreturn {{ {', '.join(exported)} }};\n}})();\n"

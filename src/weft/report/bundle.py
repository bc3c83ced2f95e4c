"""`bundle`: the page's ES modules as one script, since a page in one file has nothing to import.

A module becomes a function that gives back what it exports; an import becomes a look at what a
module before it gave. Only `import { a, b } from "./x.js"` and `export` before a declaration are
known, one to a line: that is all that the modules use.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files

from weft.errors import WeftError

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function\*?|const|class)\s+(\w+))", re.MULTILINE)


def asset(name: str) -> str:
    """The text of a file that the page is made of."""
    return (files("weft.report") / "assets" / name).read_text(encoding="utf-8")


def bundle(main: str) -> str:
    """A module and all that it imports, as one script."""
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
    r"""A module as a function that is called at once.

    >>> print(as_function("a", 'import { b } from "./c.js";\nexport const d = b;\n'))
    const module_a = (() => {
    const { b } = module_c;
    const d = b;
    return { d };
    })();
    """
    exported = [found for _, found in _EXPORT.findall(text)]
    body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const {\1} = module_\2;", text)).strip()
    if re.search(r"^(import|export)\b", body, re.MULTILINE):
        raise WeftError(f"{name}.js imports or exports in a way that is not known here")
    return f"const module_{name} = (() => {{\n{body}\nreturn {{ {', '.join(exported)} }};\n}})();\n"

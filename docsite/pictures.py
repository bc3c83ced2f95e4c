"""Pictures of a page: its Python blocks run, and its picture comments are drawn.

`<!-- picture: spec, (8, 15) -->` is replaced by `show(spec, (8, 15))` as SVG. The names come from
the Python blocks above it, so that a picture cannot differ from the code beside it.
"""

from __future__ import annotations

import contextlib
import io
import re

from weft.draw import draw, to_svg

PART = re.compile(
    r"^```python\n(?P<code>.*?)^```$|^<!-- picture: (?P<picture>.*?) -->$", re.MULTILINE | re.DOTALL
)


def with_pictures(markdown: str, page: str = "page") -> str:
    r"""Return the page with every picture comment replaced by its drawing.

    >>> text = "```python\nfrom weft import ZRange\n```\n<!-- picture: ZRange((0,), (4,)) -->"
    >>> "<svg" in with_pictures(text)
    True
    """
    if not any(part["picture"] for part in PART.finditer(markdown)):
        return markdown  # a page without pictures may need an extra, so it does not run
    names: dict[str, object] = {"__name__": page}

    def place(part: re.Match[str]) -> str:
        if part["picture"] is not None:
            drawing = eval(f"draw({part['picture']})", names | {"draw": draw})  # the page's text
            return f'<figure class="drawing">{to_svg(drawing)}</figure>'
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(part["code"], page, "exec"), names)
        return part[0]

    return PART.sub(place, markdown)

"""Pictures of a page: its Python runs, and what its comments name is drawn.

`<!-- picture: spec, (8, 15) -->` in a page stands where the drawing of `spec` with the shape
(8, 15) belongs: `show(spec, (8, 15))` as SVG. The names are those of the page's Python blocks
above it, so that a picture cannot differ from the code beside it.
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
    r"""The page with a drawing in the place of every comment that asks for one.

    >>> text = "```python\nfrom weft import ZRange\n```\n<!-- picture: ZRange((0,), (4,)) -->"
    >>> "<svg" in with_pictures(text)
    True
    """
    if not any(part["picture"] for part in PART.finditer(markdown)):
        return markdown  # without pictures nothing runs, whatever it needs
    names: dict[str, object] = {"__name__": page}

    def place(part: re.Match[str]) -> str:
        if part["picture"] is not None:
            drawing = draw(*eval(f"({part['picture']},)", names))  # the page's own text
            return f'<figure class="drawing">{to_svg(drawing)}</figure>'
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(part["code"], page, "exec"), names)
        return part[0]

    return PART.sub(place, markdown)

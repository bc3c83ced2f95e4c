"""Drawings as SVG: self-contained, small, readable on light and on dark."""

from __future__ import annotations

from weft.draw.drawing import Drawing, Item, Label, Line, Rect, clip, escape, extent
from weft.draw.text import to_text

STEP_X, STEP_Y, PAD = 8, 16, 8
"""Pixels of a column, of a row, and of the margin."""

PALETTE = ("#7ad", "#e86", "#ed8", "#fab", "#9df", "#4b9", "#bc3", "#ccc")
"""Light colours that are distinct for most kinds of colour vision (after Paul Tol)."""

SIZE_LIMIT = 20_000
"""The most bytes of HTML for one value in a notebook."""

_HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" '
    'role="img" font-family="ui-monospace,monospace" font-size="12" fill="currentColor">'
)
_HATCH = (
    '<defs><pattern id="weft-hatch" width="7" height="7" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><path d="M0 0v7" stroke="#000" stroke-opacity=".4"/></pattern>'
    "</defs>"
)
_ANCHORS = {"start": "", "middle": ' text-anchor="middle"', "end": ' text-anchor="end"'}


def to_svg(drawing: Drawing) -> str:
    """Return the drawing as one self-contained SVG element.

    >>> to_svg(Drawing((Rect(0, 0, 6, 2, "a"),))).startswith("<svg")
    True
    """
    above = 1 if drawing.title else 0
    items = list(drawing.items)
    width, height = extent(items)
    notes = [Label(0, height + 1 + row, clip(note)) for row, note in enumerate(drawing.notes)]
    heading = [Label(0, -1, clip(drawing.title))] if drawing.title else []
    body = "".join(_element(item, above) for item in [*items, *heading, *notes])
    wide = max([width, *(len(label.text) for label in heading + notes)])
    pixels_x = (wide + 1) * STEP_X + 2 * PAD
    pixels_y = (height + 1 + above + len(notes)) * STEP_Y + 2 * PAD
    title = f"<title>{escape(clip(drawing.title))}</title>" if drawing.title else ""
    hatch = _HATCH if any(isinstance(item, Rect) and item.hatched for item in items) else ""
    return _HEAD.format(w=pixels_x, h=pixels_y) + title + hatch + body + "</svg>"


def to_html(drawing: Drawing) -> str:
    """Return the SVG, or shortened plain text if the SVG is larger than `SIZE_LIMIT`."""
    svg = to_svg(drawing)
    if len(svg.encode()) <= SIZE_LIMIT:
        return svg
    most = SIZE_LIMIT // 8  # an escaped character may take 6 bytes
    return f"<pre>{escape(to_text(drawing)[:most])}…</pre>"


def _element(item: Item, above: int) -> str:
    match item:
        case Rect(x, y, width, height, label, tone, spot, hatched):
            fill = "none" if tone is None else PALETTE[tone % len(PALETTE)]
            rect = "".join(
                f'<rect x="{_x(x)}" y="{_y(y, above)}" width="{width * STEP_X}" '
                f'height="{height * STEP_Y}" fill="{colour}" stroke="#555"/>'
                for colour in (fill, "url(#weft-hatch)")[: 1 + hatched]
            )
            ink = "" if tone is None else ' fill="#000"'
            column, row = spot or (width / 2, height / 2)
            middle, centre = _y(y, above) + int(row * STEP_Y), _x(x) + int(column * STEP_X)
            return rect + (label and _text(centre, middle, label, "middle", ink))
        case Line(x0, y0, x1, y1, arrow):
            line = (
                f'<line x1="{_x(x0)}" y1="{_y(y0, above)}" x2="{_x(x1)}" y2="{_y(y1, above)}" '
                'stroke="currentColor"/>'
            )
            return line + (_head(x0, y0, x1, y1, above) if arrow else "")
        case Label(x, y, text, align):
            return _text(_x(x), _y(y, above), text, align)


def _text(x: int, y: int, text: str, align: str, ink: str = "") -> str:
    return f'<text x="{x}" y="{y + 4}"{_ANCHORS[align]}{ink}>{escape(clip(text))}</text>'


def _head(x0: int, y0: int, x1: int, y1: int, above: int) -> str:
    """Return a small triangle at the end of an arrow."""
    dx, dy = (x1 > x0) - (x1 < x0), (y1 > y0) - (y1 < y0)
    x, y = _x(x1), _y(y1, above)
    back_x, back_y = x - 6 * dx, y - 6 * dy
    side_x, side_y = 3 * dy, 3 * dx
    points = f"{x},{y} {back_x + side_x},{back_y + side_y} {back_x - side_x},{back_y - side_y}"
    return f'<polygon points="{points}"/>'


def _x(column: int) -> int:
    return PAD + column * STEP_X


def _y(row: int, above: int) -> int:
    return PAD + (row + above) * STEP_Y + STEP_Y // 2

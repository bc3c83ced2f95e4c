"""A `Drawing`: rectangles, lines and labels on a grid of characters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias


class Rect(NamedTuple):
    """A rectangle whose borders run along columns x and x + width and rows y and y + height.

    Neighbours share a border. `tone` picks a colour; None leaves the inside empty. The label is
    centred at `label_at`, counted from the corner, or in the middle. A `hatched` rectangle holds
    parts that are still to be combined.
    """

    x: int
    y: int
    width: int
    height: int
    label: str = ""
    tone: int | None = None
    label_at: tuple[int, int] | None = None
    hatched: bool = False


class Line(NamedTuple):
    """A horizontal or vertical line; with `arrow`, it points at its end."""

    x0: int
    y0: int
    x1: int
    y1: int
    arrow: bool = False


class Label(NamedTuple):
    """Text in row y that starts, is centred or ends at column x."""

    x: int
    y: int
    text: str
    align: Literal["start", "middle", "end"] = "start"


Item: TypeAlias = Rect | Line | Label
"""An item of a drawing."""


class Drawing(NamedTuple):
    """Items under a title, with remarks below: what `show` prints and notebooks display.

    >>> from weft.draw import to_text
    >>> print(to_text(Drawing((Rect(0, 0, 6, 2, "a"), Rect(6, 0, 6, 2, "b")))))
    ┌─────┬─────┐
    │  a  │  b  │
    └─────┴─────┘
    """

    items: tuple[Item, ...]
    title: str = ""
    notes: tuple[str, ...] = ()

    def titled(self, title: str) -> Drawing:
        """Return the drawing with another title."""
        return self._replace(title=title)


def clip(text: str, limit: int = 160) -> str:
    """Return the text on one line, cut to the limit, so that every picture stays small."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def left_edge(label: Label) -> int:
    """Return the column in which the text of a label begins."""
    back = {"start": 0, "middle": len(label.text) // 2, "end": len(label.text)}
    return label.x - back[label.align]


def extent(items: Iterable[Item]) -> tuple[int, int]:
    """Return the last column and the last row of items."""
    width = height = 0
    for item in items:
        match item:
            case Rect(x, y, wide, high):
                right, bottom = x + wide, y + high
            case Line(x0, y0, x1, y1):
                right, bottom = max(x0, x1), max(y0, y1)
            case Label():
                right, bottom = left_edge(item) + len(item.text), item.y
        width, height = max(width, right), max(height, bottom)
    return width, height


def moved(items: Iterable[Item], x: int, y: int) -> list[Item]:
    """Return items moved right and down."""
    return [
        item._replace(x0=item.x0 + x, x1=item.x1 + x, y0=item.y0 + y, y1=item.y1 + y)
        if isinstance(item, Line)
        else item._replace(x=item.x + x, y=item.y + y)
        for item in items
    ]


def escape(text: str) -> str:
    """Return the text escaped for HTML and SVG, without characters that these do not allow.

    >>> escape('<a> & "b"')
    '&lt;a&gt; &amp; &quot;b&quot;'
    """
    legal = "".join(char for char in text if char.isprintable() or char == "\n")
    return legal.translate(
        {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;", ord('"'): "&quot;"}
    )

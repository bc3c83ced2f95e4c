"""`show(x)`: draw any value of Weft in the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any, Protocol, TextIO

from weft.draw.drawing import Drawing, clip, escape
from weft.draw.svg import to_html
from weft.draw.text import PLAIN, to_text
from weft.errors import WeftError


class Drawable(Protocol):
    """A value that draws itself."""

    def drawing(self, *args: Any, **options: Any) -> Drawing:
        """Return the picture of the value; the meaning of the arguments depends on the value."""
        ...


class Drawn:
    """A value that has a picture in notebooks; displaying it never raises."""

    __slots__ = ()

    def drawing(self) -> Drawing:
        """Return the picture of the value."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        try:
            return to_html(self.drawing())
        except Exception:  # a display hook that raises hides the value itself
            return f"<pre>{escape(_name(self))}</pre>"


def _name(value: object) -> str:
    try:
        return clip(repr(value), 2000)
    except Exception:  # an integer of 5,000 digits has no repr
        return type(value).__name__


def show(
    x: Drawable | Drawing | Iterable[Drawable],
    *args: Any,
    file: TextIO | None = None,
    **options: Any,
) -> None:
    """Print a picture of `x`: a mesh, a box, several boxes, a sharding with a shape, an operator, …

    Colours are used on a terminal, unless the variable `NO_COLOR` is set.

    >>> from weft import ZRange
    >>> show([ZRange((0, 0), (2, 4)), ZRange((2, 0), (4, 4))])
    2 boxes in [0:4, 0:4]
      0       4
    0 ┌───────┐
      │   0   │
    2 ├───────┤
      │   1   │
    4 └───────┘
    """
    stream = sys.stdout if file is None else file
    if stream is not None:  # a program without a console has none
        say(to_text(draw(x, *args, **options), colour=wants_colour(stream)), stream)


def say(text: str, stream: TextIO) -> None:
    """Print the text, in ASCII if the stream cannot write more."""
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = text.translate(PLAIN).encode("ascii", "replace").decode()
    print(text, file=stream)


def draw(x: Drawable | Drawing | Iterable[Drawable], *args: Any, **options: Any) -> Drawing:
    """Return the drawing of `x`, or of several boxes together."""
    if isinstance(x, Drawing):
        return x
    if not isinstance(x, type) and hasattr(x, "drawing"):
        drawing: Drawing = x.drawing(*args, **options)
        return drawing
    if isinstance(x, Iterable):
        items = tuple(x)
        kinds = {type(item) for item in items}
        if len(kinds) == 1 and hasattr(items[0], "draw_together"):
            together: Drawing = items[0].draw_together(items)
            return together
    raise WeftError(f"nothing to draw in {clip(repr(x), 60)}, a {type(x).__name__}")


def wants_colour(stream: TextIO) -> bool:
    """Return whether the stream is a terminal, and colours are not turned off."""
    quiet = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not quiet and stream.isatty()

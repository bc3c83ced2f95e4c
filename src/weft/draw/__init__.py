"""Drawings: rectangles, lines and labels in, text and SVG out."""

from weft.draw.drawing import Drawing, Item, Label, Line, Rect, clip, extent, moved
from weft.draw.figure import ArrayPanel, draw_figure
from weft.draw.panels import Patch, draw_blocks, draw_boxes, draw_patches, few
from weft.draw.rows import ApplicationRow, ValueBox, first_and_last
from weft.draw.scale import Scale, limits
from weft.draw.show import Drawable, Drawn, draw, say, show, wants_colour
from weft.draw.svg import SIZE_LIMIT, to_html, to_svg
from weft.draw.text import to_text

__all__ = [
    "SIZE_LIMIT",
    "ApplicationRow",
    "ArrayPanel",
    "Drawable",
    "Drawing",
    "Drawn",
    "Item",
    "Label",
    "Line",
    "Patch",
    "Rect",
    "Scale",
    "ValueBox",
    "clip",
    "draw",
    "draw_blocks",
    "draw_boxes",
    "draw_figure",
    "draw_patches",
    "extent",
    "few",
    "first_and_last",
    "limits",
    "moved",
    "say",
    "show",
    "to_html",
    "to_svg",
    "to_text",
    "wants_colour",
]

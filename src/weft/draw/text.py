"""Drawings as text: box-drawing characters, colours on request."""

from __future__ import annotations

from weft.draw.drawing import Drawing, Item, Label, Line, Rect, clip, left_edge

UP, RIGHT, DOWN, LEFT = 1, 2, 4, 8
STROKES = " ╵╶└╷│┌├╴┘─┴┐┤┬┼"
"""The character for each set of arms, by the sum of UP, RIGHT, DOWN and LEFT."""

BACKGROUNDS = (153, 216, 229, 218, 195, 115, 149, 188)
"""Light colours of the 256-colour terminal palette, in the order of the SVG palette."""

PLAIN = {ord(stroke): "+" for stroke in STROKES[1:]} | {
    ord("─"): "-",
    ord("│"): "|",
    ord("▶"): ">",
    ord("◀"): "<",
    ord("▲"): "^",
    ord("▼"): "v",
    ord("⋯"): "...",
    ord("⋮"): ":",
    ord("…"): "...",
    ord("×"): "x",
    ord("╱"): "/",
    ord("·"): "-",
}
"""Replacements for streams that can only write ASCII."""


def to_text(drawing: Drawing, colour: bool = False) -> str:
    """Return the drawing in plain characters, or with ANSI colours.

    >>> print(to_text(Drawing((Rect(0, 0, 4, 2, "x"), Rect(2, 1, 4, 2)))))
    ┌───┐
    │ x─┼─┐
    └─┼─┘ │
      └───┘
    """
    page = _Page()
    for item in drawing.items:
        page.add(item)
    body = page.lines(colour)
    return "\n".join([*([clip(drawing.title)] if drawing.title else []), *body, *drawing.notes])


class _Page:
    """Characters by (row, column): strokes join where lines meet, text goes on top."""

    def __init__(self) -> None:
        self.arms: dict[tuple[int, int], int] = {}
        self.chars: dict[tuple[int, int], str] = {}
        self.tones: dict[tuple[int, int], int] = {}

    def add(self, item: Item) -> None:
        match item:
            case Rect():
                self._rect(item)
            case Line():
                self._line(item)
            case Label():
                self._write(left_edge(item), item.y, item.text)

    def lines(self, colour: bool) -> list[str]:
        spots = self.arms.keys() | self.chars.keys() | self.tones.keys()
        height = max((row for row, _ in spots), default=-1) + 1
        widths = [0] * height
        for row, column in spots:
            widths[row] = max(widths[row], column + 1)
        draw = self._coloured if colour else self._char
        return [
            "".join(draw(row, column) for column in range(width)).rstrip()
            for row, width in enumerate(widths)
        ]

    def _rect(self, rect: Rect) -> None:
        right, bottom = rect.x + rect.width, rect.y + rect.height
        for row in (rect.y, bottom):
            self._stroke(row, rect.x, row, right)
        for column in (rect.x, right):
            self._stroke(rect.y, column, bottom, column)
        for row in range(rect.y + 1, bottom):
            for column in range(rect.x + 1, right):
                if rect.tone is not None:
                    self.tones[row, column] = rect.tone
                if rect.hatched:
                    self.chars[row, column] = "╱"
        if rect.label:
            label = clip(rect.label, max(1, rect.width - 1))
            if rect.hatched and len(label) + 2 < rect.width:
                label = f" {label} "
            column, row = rect.label_at or (rect.width // 2, rect.height // 2)
            self._write(rect.x + column - (len(label) - rect.width % 2) // 2, rect.y + row, label)

    def _line(self, line: Line) -> None:
        low_y, high_y = sorted((line.y0, line.y1))
        low_x, high_x = sorted((line.x0, line.x1))
        self._stroke(low_y, low_x, high_y, low_x)
        self._stroke(high_y, low_x, high_y, high_x)
        if line.arrow:
            across = "▶" if line.x1 >= line.x0 else "◀"
            down = "▼" if line.y1 >= line.y0 else "▲"
            self.chars[line.y1, line.x1] = across if line.y0 == line.y1 else down

    def _stroke(self, row0: int, column0: int, row1: int, column1: int) -> None:
        """Draw a horizontal or vertical stroke, joined to the strokes it meets."""
        arms = self.arms
        for column in range(column0, column1):
            arms[row0, column] = arms.get((row0, column), 0) | RIGHT
            arms[row0, column + 1] = arms.get((row0, column + 1), 0) | LEFT
        for row in range(row0, row1):
            arms[row, column0] = arms.get((row, column0), 0) | DOWN
            arms[row + 1, column0] = arms.get((row + 1, column0), 0) | UP

    def _write(self, x: int, y: int, text: str) -> None:
        for step, char in enumerate(text):
            self.chars[y, x + step] = char

    def _char(self, row: int, column: int) -> str:
        spot = (row, column)
        return self.chars.get(spot) or STROKES[self.arms.get(spot, 0)]

    def _coloured(self, row: int, column: int) -> str:
        char = self._char(row, column)
        tone = self.tones.get((row, column))
        if tone is None or (row, column) in self.arms:
            return char
        return f"\x1b[38;5;16;48;5;{BACKGROUNDS[tone % len(BACKGROUNDS)]}m{char}\x1b[0m"

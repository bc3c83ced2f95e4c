"""`timeline_svg`: the timeline of a run as a file: to the pixel, with what every task took.

A task is a rectangle whose title (what the pointer shows) says what it was; strips at its foot are
the time that it waited for other cells, read storage and wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from weft.draw import clip
from weft.draw.drawing import escape
from weft.draw.svg import PALETTE
from weft.plan.searching.front_picture import scaled
from weft.runtime.cluster.metrics.lanes import PARTS, Lane, Span, lanes_of, length_of
from weft.runtime.cluster.metrics.record_table import headline, remarks
from weft.runtime.cluster.metrics.timeline import NAME, tones_of
from weft.values import counted

if TYPE_CHECKING:
    from weft.runtime.cluster.metrics.record import RunRecord
    from weft.runtime.cluster.metrics.task_record import TaskRecord

PIXELS, LANE, BAR, STRIP = 960, 22, 16, 3
"""Of the SVG: the width of the lanes, the height of a lane, of a task in it, of a strip in that."""
MOST_LANES = 256
SIZE_LIMIT = 500_000
"""The most bytes of an SVG: what is shorter than some pixels is merged until it fits."""

_STYLE = (
    "svg{color:#222}.b{fill:#fff}"
    "@media(prefers-color-scheme:dark){svg{color:#ddd}.b{fill:#1b1b1b}}"
    ".t{stroke:#555;stroke-width:.5}.a{fill:none;stroke:#c33}.l{stroke:currentColor;opacity:.3}"
    ".receiving{fill:#36c}.reading{fill:#171}.writing{fill:#a22}"
)


def timeline_svg(record: RunRecord) -> str:
    """The timeline as an SVG file: readable on light and on dark, below `SIZE_LIMIT`.

    >>> from weft.runtime.cluster.metrics.record import RunRecord
    >>> from weft import DeviceMesh
    >>> empty = RunRecord("threads", 1, DeviceMesh("m", (1,), ("x",)), 0.0, 1.0, ())
    >>> timeline_svg(empty).startswith("<svg")
    True
    """
    pixels = 1.0
    while True:
        svg = _Page(record, pixels).svg()
        if len(svg.encode()) <= SIZE_LIMIT or pixels > PIXELS:
            return svg
        pixels *= 2


class _Page:
    """One SVG, in which nothing is narrower than some pixels."""

    def __init__(self, record: RunRecord, pixels: float) -> None:
        self.record, self.length = record, length_of(record)
        self.lanes = lanes_of(record, pixels * self.length / PIXELS)
        self.drawn = self.lanes[:MOST_LANES]
        self.tones = tones_of(record)
        names = [clip(lane.worker or "?", NAME) for lane in self.drawn]
        self.left = 16 + 7 * max(map(len, names), default=0)
        self.names, self.top = names, 48

    def svg(self) -> str:
        """The title, the lanes, the seconds below them, what the colours are, and the remarks."""
        bottom = self.top + LANE * len(self.drawn)
        body = [*self._axis(bottom)]
        for row, lane in enumerate(self.drawn):
            body += self._lane(lane, self.names[row], self.top + LANE * row)
        below, legend = self._legend(bottom + 40)
        notes = list(remarks(self.record))
        if len(self.lanes) > MOST_LANES:
            notes.insert(0, f"… {len(self.lanes) - MOST_LANES} more lanes are not drawn")
        told = [_text(12, below + 18 * n, note) for n, note in enumerate(notes)]
        wide, high = self.left + PIXELS + 24, below + 18 * len(notes) + 4
        title = headline(self.record)
        return "".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" '
                f'width="{wide}" height="{high}" role="img" fill="currentColor" '
                'font-family="ui-monospace,monospace" font-size="12">',
                f"<title>{escape(title)}</title><style>{_STYLE}</style>"
                '<rect class="b" width="100%" height="100%"/>',
                _text(12, 20, title),
                *body,
                *legend,
                *told,
                "</svg>",
            ]
        )

    def _axis(self, bottom: int) -> Iterator[str]:
        for n in range(5):
            x = self.left + PIXELS * n // 4
            yield f'<line class="l" x1="{x}" y1="{self.top - 6}" x2="{x}" y2="{bottom}"/>'
            anchor = ("start", "middle", "middle", "middle", "end")[n]
            seconds = scaled(self.length * n / 4, "s") if n else "0"
            yield _text(x, bottom + 14, seconds, anchor)

    def _lane(self, lane: Lane, name: str, y: int) -> Iterator[str]:
        yield _text(self.left - 8, y + 13, name, "end")
        middle = y + BAR // 2
        yield (
            f'<line class="l" x1="{self.left}" y1="{middle}" x2="{self.left + PIXELS}" '
            f'y2="{middle}"/>'
        )
        for span in lane.spans:
            yield self._span(span, y)
        for part in PARTS:
            strips = "".join(self._strip(span, part, y) for span in lane.spans)
            yield f'<path class="{part}" d="{strips}"/>' if strips else ""

    def _span(self, span: Span, y: int) -> str:
        x, width = self._x(span.begin), self._wide(span.end - span.begin)
        colour = f' fill="{PALETTE[self.tones[span.operator]]}"'
        look = 'class="t a"' if span.is_again else f'class="t"{colour}'
        return (
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" {look}>'
            f"<title>{escape(clip(told(span), 180))}</title></rect>"
        )

    def _strip(self, span: Span, part: str, y: int) -> str:
        """A part of the time of a task, at its foot: what came in at its begin, the rest after."""
        before = sum(_taken(span, other) for other in PARTS[: PARTS.index(part)])
        width = self._wide(_taken(span, part), least=0)
        if width < 0.1:
            return ""
        begin = span.begin + before if part != PARTS[-1] else span.end - _taken(span, part)
        return f"M{self._x(begin):.1f} {y + BAR - STRIP}h{width:.1f}v{STRIP}h-{width:.1f}z"

    def _x(self, seconds: float) -> float:
        return self.left + PIXELS * seconds / self.length

    def _wide(self, seconds: float, least: float = 0.5) -> float:
        return max(least, PIXELS * seconds / self.length)

    def _legend(self, y: int) -> tuple[int, list[str]]:
        """What the colours are, in as many lines as it takes; and where the next line is."""
        entries = [
            (f'fill="{PALETTE[tone]}" stroke="#555"', text) for tone, text in self._told_tones()
        ]
        entries += [
            (f'class="{part}"', text)
            for part, text in zip(PARTS, ("waits for others", "reads storage", "writes storage"))
            if any(getattr(task, part) for task in self.record.tasks)
        ]
        entries += [('class="a"', "made again")] * bool(self.record.again)
        x, found = 12, list[str]()
        for look, text in entries:
            if x > 12 and x + 22 + 7.5 * len(text) > self.left + PIXELS:
                x, y = 12, y + 20
            found.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" {look}/>')
            found.append(_text(x + 18, y, text))
            x += round(38 + 7.5 * len(text))
        return y + 24, found

    def _told_tones(self) -> Iterator[tuple[int, str]]:
        """Each tone with its operator, the last with all that share it."""
        for tone, group in groupby(self.tones, key=self.tones.__getitem__):
            names = list(group)
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            yield tone, clip(names[0], 40) + more


def _taken(span: Span, part: str) -> float:
    return float(sum(getattr(task, part) for task in span.tasks))


def told(span: Span) -> str:
    """What a span was, in one line: a task, or the tasks that were too short to be seen."""
    if len(span.tasks) == 1:
        return _told_task(span.tasks[0]) + ", made again" * span.is_again
    seconds = sum(task.seconds for task in span.tasks)
    received = sum(task.arrived for task in span.tasks)
    numbers = f"{span.tasks[0].number} to {span.tasks[-1].number}"
    amount = f", {received} B received" if received else ""
    count = counted(len(span.tasks), "task")
    return f"{count}, {numbers}, mostly {span.operator}: {scaled(seconds, 's')}{amount}"


def _told_task(task: TaskRecord) -> str:
    sizes = [
        f", {size} B {word}"
        for word, size in (
            ("received", task.arrived),
            ("sent", task.sent),
            ("read", task.read),
            ("written", task.written),
        )
        if size
    ]
    where = f"{task.number}: {task.kind} {task.operator} {task.box} on cell {task.cell}"
    return f"{where}: {scaled(task.seconds, 's')}{''.join(sizes)}"


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    how = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:g}" y="{y:g}"{how}>{escape(clip(text))}</text>'

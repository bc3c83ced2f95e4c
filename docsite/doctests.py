"""Put fences around doctests: Markdown would read `>>>` as nested quotations."""

from __future__ import annotations

from typing import Any

import griffe


class Fenced(griffe.Extension):  # type: ignore[misc] # griffe may not be there
    """Puts fences around every doctest of every docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite the docstring of an object, if it has one."""
        if obj.docstring is not None:
            obj.docstring.value = fence(obj.docstring.value)


def fence(text: str) -> str:
    r"""Return the text with `pycon` fences around blocks from `>>>` to a blank line.

    >>> fence("A sum.\n\n>>> 1 + 1\n2").splitlines()
    ['A sum.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    lines: list[str] = []
    inside = fenced = False
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith("```")
        if inside and not line.strip():
            lines, inside = [*lines, "```"], False
        elif not inside and not fenced and line.startswith(">>>"):
            lines, inside = [*lines, "```pycon"], True
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)

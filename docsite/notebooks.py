"""Notebooks from examples: `python -m docsite.notebooks build/notebooks`.

`# %%` lines divide an example into cells. `# %% [markdown]` begins a cell of comments, which become
text; the docstring is the first cell. Nothing is run or installed.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

EXAMPLES = Path(__file__).parent.parent / "examples"
MARK = "# %%"


class Cell(NamedTuple):
    """A cell of a notebook: `kind` is "code" or "markdown"."""

    kind: str
    text: str


def sources() -> list[Path]:
    """Return the examples that have cells."""
    files = sorted(EXAMPLES.glob("*.py"))
    return [f for f in files if f"\n{MARK}" in f.read_text(encoding="utf-8")]


def cells(source: str) -> list[Cell]:
    r"""Return the cells of an example: its docstring, then the text between its marks.

    >>> for cell in cells('"Two."\n\nx = 1\n# %% [markdown]\n# Add **one**.\n# %%\nx += 1\n'):
    ...     print(cell.kind, "-", cell.text)
    markdown - Two.
    code - x = 1
    markdown - Add **one**.
    code - x += 1
    """
    tree = ast.parse(source)
    result = [Cell("markdown", ast.get_docstring(tree) or "")]
    lines = source.splitlines()
    body, kind = lines[tree.body[0].end_lineno if result[0].text else 0 :], "code"
    piece: list[str] = []
    for line in [*body, MARK]:
        if not line.startswith(MARK):
            piece.append(line)
            continue
        result.append(Cell(kind, _text(kind, piece)))
        kind, piece = "markdown" if "[markdown]" in line else "code", []
    return [cell for cell in result if cell.text]


def _text(kind: str, lines: list[str]) -> str:
    if kind == "markdown":
        lines = [line.removeprefix("#").removeprefix(" ") for line in lines]
    return "\n".join(lines).strip("\n")


def notebook(source: str) -> dict[str, Any]:
    """Return an example as a notebook of format 4.5, without outputs."""
    written: list[dict[str, Any]] = []
    for number, (kind, text) in enumerate(cells(source)):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": text}
        written.append(
            cell if kind == "markdown" else cell | {"execution_count": None, "outputs": []}
        )
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": written,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def to_ipynb(source: str) -> str:
    """Return the text of the notebook's file."""
    return json.dumps(notebook(source), indent=1, ensure_ascii=False) + "\n"


def main(folder: str) -> None:
    """Write the notebooks into a folder, and print their paths."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for file in sources():
        path = Path(folder, file.stem + ".ipynb")
        path.write_text(to_ipynb(file.read_text(encoding="utf-8")), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main(*sys.argv[1:])

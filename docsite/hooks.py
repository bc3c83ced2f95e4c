"""Hooks of MkDocs: pages that are not in docs/, links to them, and pictures."""

from __future__ import annotations

import os.path
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pygments.formatters import HtmlFormatter

from docsite.notebooks import MARK, to_ipynb
from docsite.pictures import with_pictures

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]+)(#[^)\s]*)?\)")
OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages outside docs/, and their place in the site."""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/, a page and a notebook for each example, and code colours."""
    from mkdocs.structure.files import File

    def add(place: str, content: str) -> None:
        files.append(File.generated(config, place, content=content))

    for source, place in OUTSIDE.items():
        add(place, (ROOT / source).read_text(encoding="utf-8"))
    for file in sorted((ROOT / "examples").glob("[!_]*.py")):
        source = file.read_text(encoding="utf-8")
        add(f"examples/{file.stem}.md", example_page(file.name, source))
        add(f"examples/{file.name}", source)
        if f"\n{MARK}" in source:
            add(f"examples/{file.stem}.ipynb", to_ipynb(source))
    add("assets/code.css", code_colours())
    return files


def example_page(name: str, source: str) -> str:
    """Return the page of an example: its files and its source."""
    files = [f"[{name}]({name})"]
    if f"\n{MARK}" in source:
        notebook = name.replace(".py", ".ipynb")
        files.append(f"as a notebook: [{notebook}]({notebook})")
    return f"# {name}\n\n{', '.join(files)}\n\n```python\n{source}```\n"


def code_colours() -> str:
    """Return the style sheet of code, for light and dark mode."""
    dark = HtmlFormatter(style="github-dark").get_style_defs("[data-bs-theme=dark] .highlight")
    return f"{HtmlFormatter(style='default').get_style_defs('.highlight')}\n{dark}\n"


def on_page_markdown(markdown: str, *, page: Page, **kwargs: Any) -> str:
    """Draw the pictures, and rewrite links that leave docs/."""
    place = page.file.src_uri
    return rewrite_links(with_pictures(markdown, place), place)


def rewrite_links(markdown: str, place: str) -> str:
    """Return the page at `place` in the site with links that are valid in the site.

    >>> rewrite_links("[how](../CONTRIBUTING.md#how) [run](runtime.md)", "tensors.md")
    '[how](contributing.md#how) [run](runtime.md)'
    >>> rewrite_links("[ranks](../../examples/ranks.py)", "guide/model.md")
    '[ranks](../examples/ranks.md)'
    """
    source = {place: name for name, place in OUTSIDE.items()}.get(place, f"docs/{place}")
    if place.startswith("examples/"):
        return markdown

    def rewrite(link: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join(os.path.dirname(source), link[1]))
        new = os.path.relpath(site_place(target), os.path.dirname(place) or ".")
        return f"]({new}{link[2] or ''})"

    return LINK.sub(rewrite, markdown)


def site_place(path: str) -> str:
    """Return the place in the site of a file of the repository.

    >>> site_place("examples/ranks.py"), site_place("docs/runtime.md"), site_place("README.md")
    ('examples/ranks.md', 'runtime.md', 'index.md')
    """
    if path.startswith("examples/"):
        return path.removesuffix(".py") + ".md"
    return OUTSIDE.get(path) or ("index.md" if path == "README.md" else path.removeprefix("docs/"))

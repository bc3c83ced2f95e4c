"""README and docs: Python blocks run and print what is shown, pictures and links are valid."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from weft.cli import main
from weft.lang import OPERATORS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def operators():
    """Remove the operators that a page adds."""
    known = dict(OPERATORS)
    yield
    OPERATORS.clear()
    OPERATORS.update(known)


@pytest.mark.usefixtures("operators")
@each_page
def test_code_blocks_run_and_print_the_output_shown(page):
    """The blocks of a page run in order; a `text` block right after one is its output."""
    names: dict[str, object] = {"__name__": page.name}
    printed = None
    for kind, body in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "python":
            output = io.StringIO()
            with contextlib.redirect_stdout(output):
                exec(compile(body, str(page), "exec"), names)
            printed = output.getvalue()
        elif kind == "text" and printed is not None:
            assert printed.rstrip() == body.rstrip()
            printed = None


def test_the_picture_equals_the_output_of_its_command(tmp_path):
    (command,) = re.findall(r"^weft (show .*) -o docs/sharding.svg$", readme(), re.MULTILINE)
    made = tmp_path / "sharding.svg"
    assert main([*shlex.split(command), "-o", str(made)]) == 0
    assert made.read_text(encoding="utf-8") == (ROOT / "docs/sharding.svg").read_text("utf-8")


def readme():
    return (ROOT / "README.md").read_text(encoding="utf-8")


@each_page
def test_links_inside_the_repository_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@each_page
def test_links_to_headings_lead_to_one(page):
    """Links to the reference are checked when the site is built."""
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
        found = (page.parent / target) if target else page
        if not anchor.startswith("weft."):
            assert anchor in headings(found), f"{page.name} links to {target}#{anchor}"


def headings(page):
    """The anchors of a page: its headings as GitHub and MkDocs spell them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}

"""The site builds without warnings, documents every public name once, and fetches nothing."""

import ast
import doctest
import importlib
import json
import re
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from docsite import notebooks
from docsite.pictures import with_pictures

import weft

ROOT = Path(__file__).parent.parent
PACKAGES = (
    "space", "layout", "lang", "program", "plan", "runtime", "runtime.cluster", "runtime.torch",
    "store", "ckks", "ttmesh", "draw",
)  # fmt: skip
MODULES = (
    "errors", "plan.machines", "interop.jax", "interop.torch", "interop.export",
    "interop.hlo", "interop.stablehlo",
)  # fmt: skip
"""Modules without `__all__`, whose definitions are all public."""


def needs_mkdocs(test):
    """Mark a test that builds the site."""
    is_there = find_spec("mkdocs") is not None and find_spec("mkdocstrings") is not None
    reason = "needs MkDocs and mkdocstrings: pip install -e '.[docs]'"
    return pytest.mark.slow(pytest.mark.skipif(not is_there, reason=reason)(test))


def mkdocs(*arguments):
    command = [sys.executable, "-m", "mkdocs", "build", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    ran = mkdocs("--site-dir", str(folder))
    assert ran.returncode == 0, ran.stderr
    return folder


@needs_mkdocs
def test_every_public_name_is_documented_once(site):
    text = "".join(page.read_text("utf-8") for page in site.joinpath("reference").glob("*.html"))
    found = Counter(re.findall(r'id="(weft\.[\w.]+)"', text))
    wrong = {f"{home}.{name}": places for home, name, places in public(found) if places != [1]}
    assert not wrong


PAGES_WITH_PICTURES = sorted(
    str(page.relative_to(ROOT / "docs"))
    for page in (ROOT / "docs").rglob("*.md")
    if re.search(r"^<!-- picture: ", page.read_text("utf-8"), re.MULTILINE)
)


def public(found):
    """Yield each public name, and how often it is documented."""
    for package in PACKAGES:
        module = importlib.import_module(f"weft.{package}")
        for name in module.__all__:
            home = getattr(getattr(module, name), "__module__", None)
            places = {f"weft.{package}.{name}", f"{home}.{name}"}
            yield package, name, [found[place] for place in places if found[place]]
    for module in MODULES:
        for name, value in vars(importlib.import_module(f"weft.{module}")).items():
            if not name.startswith("_") and getattr(value, "__module__", "") == f"weft.{module}":
                yield module, name, [found[f"weft.{module}.{name}"]]


def test_the_vocabulary_is_listed():
    page = (ROOT / "docs/reference/index.md").read_text("utf-8")
    listed = re.findall(r"^\| `(\w+)` \| \[`([\w.]+)`\]", page, re.MULTILINE)
    assert dict(listed) == {name: f"{home}.{name}" for name, home in weft._HOMES.items()}


@needs_mkdocs
def test_concepts_have_pictures(site):
    pages = sorted(site.joinpath("concepts").glob("*.html"))
    assert len(pages) == 7
    for page in [*pages, site / "index.html"]:
        assert '<figure class="drawing"><svg' in page.read_text("utf-8"), page.name


@pytest.mark.parametrize("page", PAGES_WITH_PICTURES)
def test_every_picture_comment_is_drawn(page):
    text = (ROOT / "docs" / page).read_text("utf-8")
    comments = re.findall(r"^<!-- picture: ", text, re.MULTILINE)
    assert with_pictures(text, page).count('<figure class="drawing"><svg') == len(comments)


def test_the_figures_of_the_source_designs_are_drawn_where_they_are_taught():
    table = (ROOT / "docs/design/sources.md").read_text("utf-8")
    table = table.partition("## Figures")[2].partition("\n## ")[0]
    pages = re.findall(r"^\| 00\d \|.*\]\(\.\./([\w/.]+)", table, re.MULTILINE)
    assert len(pages) == 9
    for page in pages:
        text = (ROOT / "docs" / page).read_text("utf-8")
        assert "<!-- picture: " in text or "┌───" in text, page


def test_a_page_without_pictures_does_not_run():
    page = "```python\n1 / 0\n```\n\nA line `<!-- picture: x -->` is drawn.\n"
    assert with_pictures(page) == page
    with pytest.raises(ZeroDivisionError):
        with_pictures(page + "<!-- picture: x -->")


@needs_mkdocs
def test_nothing_is_fetched_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text("utf-8")
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", text):
            assert not re.search(r'(?:src|href)="(?:https?:)?//', tag), (page.name, tag)
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", sheet.read_text("utf-8")), sheet.name


@needs_mkdocs
@pytest.mark.parametrize(
    "link", ["[gone](gone.md)", "[no such place](page.md#gone)", "[none][weft.Gone]"]
)
def test_a_broken_link_is_an_error(tmp_path, link):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/page.md").write_text(f"# Page\n\n{link}\n", "utf-8")
    settings = {
        "INHERIT": str(ROOT / "mkdocs.yml"), "docs_dir": "docs", "site_dir": "site",
        "nav": [{"Page": "page.md"}], "hooks": [], "extra_css": [],
    }  # fmt: skip
    (tmp_path / "mkdocs.yml").write_text(json.dumps(settings), "utf-8")
    ran = mkdocs("-f", str(tmp_path / "mkdocs.yml"))
    assert ran.returncode == 1
    assert "gone" in ran.stderr.lower()
    assert "Aborted with 1 warnings in strict mode!" in ran.stdout


@needs_mkdocs
@pytest.mark.parametrize("file", notebooks.sources(), ids=lambda file: file.stem)
def test_examples_are_pages_and_notebooks(site, file):
    made = json.loads((site / "examples" / f"{file.stem}.ipynb").read_text("utf-8"))
    assert made == notebooks.notebook(file.read_text("utf-8"))
    assert (site / "examples" / file.name).read_text("utf-8") == file.read_text("utf-8")
    assert f"{file.stem}.ipynb" in (site / "examples" / f"{file.stem}.html").read_text("utf-8")


@pytest.mark.parametrize("file", notebooks.sources(), ids=lambda file: file.stem)
def test_notebooks_are_the_example(file):
    source = file.read_text("utf-8")
    cells = notebooks.notebook(source)["cells"]
    code = "\n\n".join(cell["source"] for cell in cells if cell["cell_type"] == "code")
    tree = ast.parse(source)
    assert ast.dump(ast.parse(code)) == ast.dump(ast.Module(tree.body[1:], []))
    assert cells[0]["source"] == ast.get_docstring(tree)
    assert len({cell["id"] for cell in cells}) == len(cells)


def test_notebooks_are_written(tmp_path, capsys):
    notebooks.main(str(tmp_path / "made"))
    assert len(capsys.readouterr().out.splitlines()) == len(notebooks.sources()) >= 5
    assert json.loads((tmp_path / "made/shard_model.ipynb").read_text("utf-8"))["nbformat"] == 4


def test_each_guide_ends_in_an_example():
    pages = sorted((ROOT / "docs/guide").glob("*.md"))
    assert len(pages) == 5
    for page in pages:
        runs = re.findall(r"^python -m examples\.(\w+)", page.read_text("utf-8"), re.MULTILINE)
        assert runs, page.name
        assert (ROOT / "examples" / f"{runs[0]}.py") in notebooks.sources()


@pytest.mark.parametrize("name", ["notebooks", "pictures", "hooks", "doctests"])
def test_doctests_of_docsite(name):
    pytest.importorskip({"hooks": "pygments", "doctests": "griffe"}.get(name, "weft"))
    failed, tried = doctest.testmod(importlib.import_module(f"docsite.{name}"))
    assert (failed, tried > 0) == (0, True)

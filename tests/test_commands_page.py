"""docs/cli.md is generated from the parser."""

import shlex
from pathlib import Path

import pytest
from docsite import commands

from weft.cli import parser

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"


def test_the_page_is_up_to_date():
    text = PAGE.read_text(encoding="utf-8")
    assert commands.MARK in text
    assert commands.page(text) == text, "run: python -m docsite.commands docs/cli.md"


def test_every_option_is_on_the_page():
    text = PAGE.read_text(encoding="utf-8")
    for path, one in parser.walk(parser.parser_with(parser.command_modules())):
        assert path == ("weft",) or f"`{' '.join(path)}`\n" in text
        for name in one._option_string_actions:
            assert name in text or name in ("-h", "--help", "--version")


def test_the_text_before_the_mark_is_kept(tmp_path):
    page = tmp_path / "cli.md"
    page.write_text(f"Before.\n{commands.MARK}What was.", encoding="utf-8")
    commands.main([str(page)])
    made = page.read_text(encoding="utf-8")
    assert made.startswith(f"Before.\n{commands.MARK}\n## Look at it\n\n### `weft show`\n")
    assert "What was." not in made


def examples():
    root = parser.parser_with(parser.command_modules())
    for _, one in parser.walk(root):
        for line in (one.epilog or "").splitlines()[1:]:
            yield line.partition("   ")[0].strip() if "   (" in line else line.strip()


@pytest.mark.parametrize("line", sorted(set(examples())))
def test_examples_are_understood(line):
    """Every example that help shows is a command line that the parser takes."""
    words = shlex.split(line.replace("source <(", "").rstrip(")").rpartition("| ")[2])
    if ">" in words:
        words = words[: words.index(">")]
    args = parser.parser_of(words[1:]).parse_args(words[1:])
    assert args.command == words[1]

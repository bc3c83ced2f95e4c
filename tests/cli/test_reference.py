"""docs/cli.md says what the parser says."""

import shlex
from pathlib import Path

import pytest

from weft.cli import commands, reference

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_page_is_what_the_parser_says():
    text = PAGE.read_text(encoding="utf-8")
    assert reference.MARK in text
    assert reference.page(text) == text, "run: python -m weft.cli.reference docs/cli.md"


def test_every_option_is_on_the_page():
    text = PAGE.read_text(encoding="utf-8")
    for path, parser in commands.walk(commands.parser_with(commands.names())):
        assert path == ("weft",) or f"`{' '.join(path)}`\n" in text
        for name in parser._option_string_actions:
            assert name in text or name in ("-h", "--help", "--version")


def test_the_page_is_made_by_hand_too(tmp_path):
    page = tmp_path / "cli.md"
    page.write_text(f"Before.\n{reference.MARK}What was.", encoding="utf-8")
    reference.main([str(page)])
    made = page.read_text(encoding="utf-8")
    assert made.startswith(f"Before.\n{reference.MARK}\n## Look at it\n\n### `weft show`\n")
    assert "What was." not in made


def examples():
    root = commands.parser_with(commands.names())
    for _, parser in commands.walk(root):
        for line in (parser.epilog or "").splitlines()[1:]:
            yield line.partition("   ")[0].strip() if "   (" in line else line.strip()


@pytest.mark.parametrize("line", sorted(set(examples())))
def test_examples_are_understood(line):
    """Every example that help shows is a command line that the parser takes."""
    words = shlex.split(line.replace("source <(", "").rstrip(")").rpartition("| ")[2])
    if ">" in words:
        words = words[: words.index(">")]
    args = commands.parser_of(words[1:]).parse_args(words[1:])
    assert args.command == words[1]

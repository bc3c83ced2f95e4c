"""The walk through the code in docs/design.md names files that exist, and few of them."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
WALK = re.compile(r"`([a-z_]+(?:/[a-z_]+)*\.py)`")


def walked():
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    lines = text.split("## One array, from notation to bytes")[1].split("\n## ")[0].splitlines()
    found, folder = [], ""
    for line in lines:
        if re.match(r"\d+\. ", line):
            folder = ""
        for name in WALK.findall(line):
            folder = name.rsplit("/", 1)[0] if "/" in name else folder
            found.append(name if "/" in name else f"{folder}/{name}")
    return found


def test_every_file_of_the_walk_exists():
    files = walked()
    assert 15 < len(files) <= 25
    missing = [name for name in files if not (ROOT / "src" / "weft" / name).is_file()]
    assert not missing

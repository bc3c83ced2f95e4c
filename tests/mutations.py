"""Hostile inputs: valid documents with values, names, tokens and bytes edited at random."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

NUMBERS = (-1, 0, 1, 2, 3, 7, 63, 2**31, 2**48, 2**63, 2**64, 10**12, 10**30, 0.5, -0.0, 1e308)
WORDS = ("", " ", "x", "\x00", "é", "\ud800", "\U0001f600", "1", "-1", "inf", "nan", "None", "/")
RAW = (
    *("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e-400", "9" * 5000, "1" + "0" * 300),
    *(
        "[" * 100_000,
        "[" * 5000 + "]" * 5000,
        '{"a":' * 3000 + "1" + "}" * 3000,
        '"' + "x" * 70_000,
    ),
    *("tru", "'x'", '"\\u12"', "{,}", "[,]", "//"),
)
"""Text that no encoder of JSON writes, put where a value stands."""

TOKENS = (
    *('"', "'", "<", ">", "@", "{", "}", "[", "]", "(", ")", "=", ",", ".", ":", ";", "?", "#"),
    *(
        "*",
        "+",
        "-",
        "->",
        "/",
        "%",
        "\\",
        "\n",
        "\t",
        "_",
        "$",
        "p1",
        ":(1)2",
        ":(2)2",
        "[[",
        "]]",
    ),
    *("999999999999999999", "9" * 5000, "1e308", "0", "-1", "é", "٣", "²", "\x00", "\ufeff"),
)
_WORDS = re.compile(r"[%@#]?[A-Za-z_][A-Za-z0-9_.]*")
_DIGITS = re.compile(r"[0-9]+")
_HOLE = re.compile(r'"hole ([0-9]{1,2}) of a fuzzer"')


def mutate_json(random: Random, documents: Sequence[bytes]) -> bytes:
    """A document with some values replaced, moved, repeated, renamed or removed."""
    if random.random() < 0.15:
        return mutate_bytes(random, documents)
    data = json.loads(random.choice(documents))
    for _ in range(_few(random)):
        data = _edit_data(random, data, documents)
    text = json.dumps(data)
    filled = _HOLE.sub(lambda hole: RAW[int(hole[1]) % len(RAW)], text)
    return filled.encode("utf-8", "surrogatepass")


def mutate_bytes(random: Random, documents: Sequence[bytes]) -> bytes:
    """A document with some of its bytes replaced, repeated, moved or removed."""
    data = random.choice(documents)
    for _ in range(_few(random)):
        data = _edit_bytes(random, data, documents)
    return data


def mutate_code(random: Random, documents: Sequence[bytes]) -> bytes:
    """A program with some of its numbers, words and lines replaced; most stay near the grammar."""
    text = random.choice(documents).decode()
    for _ in range(_few(random)):
        words = list(_WORDS.finditer(text))
        match random.randrange(6):
            case 0 | 1:
                text = _edit_numbers(random, text)
            case 2 | 3 if words:
                old, new = random.choice(words), random.choice(words)[0]
                text = text[: old.start()] + new + text[old.end() :]
            case 4:
                lines, other = text.split("\n"), random.choice(documents).decode().split("\n")
                at = random.randrange(len(lines))
                lines[at : at + random.randrange(2)] = [random.choice([*lines, *other])] * (
                    random.randrange(3)
                )
                text = "\n".join(lines)
            case _:
                text = _edit_bytes(random, text.encode(), documents).decode("utf-8", "replace")
    return text.encode()


def _few(random: Random) -> int:
    return 1 if random.random() < 0.6 else 2 + min(20, int(random.expovariate(0.6)))


def _edit_bytes(random: Random, data: bytes, documents: Sequence[bytes]) -> bytes:  # noqa: PLR0911 - an edit each
    start = random.randrange(len(data) + 1)
    stop = min(len(data), start + int(random.expovariate(0.1)))
    match random.randrange(8):
        case 0:
            return data[:start] + data[stop:]
        case 1:
            return data[:start] + random.randbytes(random.randrange(1, 5)) + data[stop:]
        case 2 | 3:
            return (
                data[:start] + random.choice(TOKENS).encode() + data[random.choice([start, stop]) :]
            )
        case 4:
            return data[:start] + data[start:stop] * random.choice([2, 3, 10, 1000]) + data[stop:]
        case 5:  # a splice with another document
            other = random.choice(documents)
            at = random.randrange(len(other) + 1)
            return (
                data[:start]
                + other[at : at + (stop - start) * random.choice([1, 20])]
                + data[stop:]
            )
        case 6:
            return data[:start] if random.random() < 0.2 else data
        case _:
            return _edit_numbers(random, data.decode("utf-8", "replace")).encode()


def _edit_text(random: Random, text: str) -> str:
    """A text with a token more, a character less, or another number in it."""
    start = random.randrange(len(text) + 1)
    stop = min(len(text), start + random.choice([0, 1, 1, 3]))
    match random.randrange(5):
        case 0:
            return text[:start] + text[stop:]
        case 1:
            return text[:start] + random.choice(TOKENS) + text[stop:]
        case 2:
            return text[:start] + text[start:stop] * random.choice([2, 3, 1000]) + text[stop:]
        case _:
            return _edit_numbers(random, text)


def _edit_numbers(random: Random, text: str) -> str:
    found = list(_DIGITS.finditer(text))
    if not found:
        return text + random.choice(WORDS[:4])
    one = random.choice(found)
    return text[: one.start()] + str(random.choice(NUMBERS)) + text[one.end() :]


def _edit_data(random: Random, data: Any, documents: Sequence[bytes]) -> Any:  # noqa: PLR0912
    """The data with one value, name or list edited."""
    places = list(_places(data))
    if not places or random.random() < 0.02:
        return _value(random)
    parent, key = random.choice(places)
    old = parent[key]
    match random.randrange(12):
        case 0:
            del parent[key]
        case 1 | 2:
            parent[key] = _value(random)
        case 3 | 4:
            parent[key] = _near(random, old)
        case 5:
            parent[key] = [old]
        case 6:
            parent[key] = {random.choice(["a", "name", "0"]): old}
        case 7:  # a copy of another value of this document, or of one like it
            others = places if random.random() < 0.5 else list(_places(_fresh(random, documents)))
            from_, at = random.choice(others or places)
            parent[key] = json.loads(json.dumps(from_[at]))
        case 8 if isinstance(old, list) and old:
            copies = random.choice([2, 2, 3, 200])
            parent[key] = [json.loads(json.dumps(one)) for one in (old * copies)[:2000]]
        case 9 if isinstance(old, list):
            random.shuffle(old)
        case 10 if isinstance(parent, dict):
            del parent[key]
            parent[random.choice(WORDS) if random.random() < 0.5 else _edit_text(random, key)] = old
        case _:
            if isinstance(old, dict):
                old[random.choice([*WORDS, "extra"])] = _value(random)
            else:
                parent[key] = _near(random, old)
    return data


def _fresh(random: Random, documents: Sequence[bytes]) -> Any:
    return json.loads(random.choice(documents))


def _near(random: Random, old: Any) -> Any:
    """A value like the old one."""
    match old:
        case bool():
            return not old
        case int() | float():
            return random.choice([old + 1, old - 1, old * 2, -old, str(old), *NUMBERS])
        case str():
            return _edit_text(random, old)
        case list() if old:
            return old[:-1] if random.random() < 0.5 else [*old, random.choice(old)]
    return _value(random)


def _value(random: Random) -> Any:
    return random.choice(
        [
            *(None, True, False, [], {}, [[]], [None], {"x": 1}, [0] * 300),
            *(random.choice(NUMBERS), random.choice(NUMBERS), random.choice(WORDS)),
            *(f"hole {random.randrange(len(RAW))} of a fuzzer", "x" * random.choice([100, 70_000])),
        ]
    )


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every value inside, as its container and its key there; at most 10,000."""
    pending, seen = [data], 0
    while pending and seen < 10_000:
        one = pending.pop()
        keys = one if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
        for key in list(keys):
            seen += 1
            yield one, key
            pending.append(one[key])

"""The harness for fuzzing tells what readers do: answers, refusals, escapes, time and memory."""

import json
import os
import signal
from random import Random

import pytest
from tests.fuzzing import Reader, fuzz
from tests.mutations import mutate_bytes, mutate_json

from weft import WeftError


def _read(data):
    """Answers a number; anything else is what a bad reader does."""
    match data:
        case b"loop":
            while True:
                pass
        case b"fill":
            return b"x" * 600_000_000
        case b"too much":
            return bytearray(1 << 40)
        case b"die":
            os.kill(os.getpid(), signal.SIGSEGV)
        case b"bug":
            raise WeftError("KeyError: this is a bug of Weft")
    try:
        return int(data)
    except ValueError:
        if data == b"":
            raise KeyError("empty") from None
        raise WeftError("no number") from None


def _reader(*hostile):
    return Reader(
        lambda: [b"1"], _read, lambda random, documents: b"17", lambda: hostile, seconds=2
    )


GOOD = _reader(b"x")
LOOP, FILL, MUCH = _reader(b"loop"), _reader(b"fill"), _reader(b"too much")
DIES, ESCAPE, BUG = _reader(b"die"), _reader(b""), _reader(b"bug")


def test_answers_and_refusals_pass():
    assert fuzz("tests.test_fuzzing:GOOD", 5).counts == {"read": 4, "refused": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("LOOP", "input 0: too slow"),
        ("FILL", "input 0: over 500 MB"),
        ("MUCH", "input 0: out of memory"),
        ("DIES", "input 0: crash"),
        ("ESCAPE", "input 0: escape: KeyError"),
        ("BUG", "input 0: escape: KeyError: this is a bug"),
    ],
)
def test_crashes_and_escaped_errors_fail_and_the_other_inputs_are_read(name, told):
    with pytest.raises(AssertionError, match=told) as caught:
        fuzz(f"tests.test_fuzzing:{name}", 3)
    assert "2 read" in str(caught.value)


def test_mutations_are_many_and_can_be_made_again():
    documents = [json.dumps({"a": [1, {"b": "x=2"}], "c": 1.5}).encode()]
    for mutate in (mutate_bytes, mutate_json):
        made = [mutate(Random(n), documents) for n in range(300)]
        assert made == [mutate(Random(n), documents) for n in range(300)]
        assert len(set(made)) > 150

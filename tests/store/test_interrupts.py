"""Ctrl-C at any moment of a recording: what was counted is right, and the rest can be recorded."""

import signal
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from tests.trials import trials

from weft.errors import WeftError
from weft.store import create, create_image, open_image
from weft.store import open as open_store
from weft.store.threads import uninterrupted

INTERRUPTED = ("writer.py", "pipeline.py", "scatter.py", "frames.py", "image.py", "levels.py")
"""The files between whose lines the signal arrives."""


class Interrupts:
    """Sends SIGINT before a line of the store, counted from the first that runs."""

    def __init__(self, line):
        self.left = line

    def __call__(self, frame, event, _):
        if event == "call" and not frame.f_code.co_filename.endswith(INTERRUPTED):
            return None
        self.left -= event == "line"
        if not self.left:
            self.left -= 1
            signal.raise_signal(signal.SIGINT)
        return self


@contextmanager
def traced(trace):
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def frame(number):
    return np.random.default_rng(number).integers(1, 99, (8, 8)).astype("uint16")


def record(writer, count, line):
    """Append and skip frames, some at a time; go on where an interrupt left it."""
    skipped, trace = set(), Interrupts(line)
    while (before := writer.frames) < count:
        some = range(before, min(count, before + 1 + before % 3))
        blocks = np.stack([frame(number) for number in some])
        is_skipped = before % 5 == 4
        try:
            with traced(trace):
                if is_skipped:
                    writer.skip(len(some))
                else:
                    writer.append(blocks, metadata=[{"number": number} for number in some])
        except KeyboardInterrupt:
            pass
        except WeftError as error:  # a part of a frame was passed on
            if "given up" not in str(error):
                raise
            break
        if is_skipped:
            skipped |= set(range(before, writer.frames))
    return skipped, trace.left


def check(found, skipped):
    data, table = found.read(), found.frames
    assert table.dropped.tolist() == sorted(skipped)
    for number in range(len(data)):
        wanted = 0 if number in skipped else frame(number)
        assert (data[number] == wanted).all(), number
        assert table[number] == ({} if number in skipped else {"number": number})
    found.verify()


ARRAYS = [
    {"chunks": (1, 4, 4), "shards": (4, 8, 8)},
    {"chunks": (3, 4, 8), "shards": (6, 8, 8), "codecs": "zstd", "epochs": 2},
    {"chunks": (1, 2, 8), "shards": (2, 4, 8)},  # an epoch is a part of a frame, if that is large
]


@pytest.fixture(autouse=True)
def _is_interruptible():
    """Python's own handler of an interrupt: a process started in the background has none."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _epochs_are_large(monkeypatch):
    monkeypatch.setattr("weft.store.pipeline.MIN_TOGETHER", 0)


@pytest.mark.random
@pytest.mark.parametrize("number", range(3))
def test_an_array_has_the_frames_that_were_counted(tmp_path, monkeypatch, number):
    if number == 2:
        monkeypatch.setattr(sys.modules["weft.store.create"], "MAX_PLANE", 1)
    random = np.random.default_rng(number)
    for trial in range(trials(100)):
        path = tmp_path / str(trial)
        with create(path, (None, 8, 8), "uint16", **ARRAYS[number]) as writer:
            skipped, _ = record(writer, 14, int(random.integers(1, 3000)))
            count = writer.frames
        assert open_store(path).shape[0] == count
        check(open_store(path), skipped)
        with open_store(path, mode="a") as writer:
            writer.append(frame(count), metadata={"number": count})
        check(open_store(path), skipped)


@pytest.mark.random
def test_levels_have_the_frames_of_the_finest(tmp_path):
    image = {"shape": (None, 8, 8), "dtype": "uint16", "chunks": (2, 4, 4), "axes": "tyx"}
    random = np.random.default_rng(0)
    for trial in range(trials(100)):
        path = tmp_path / str(trial)
        with create_image(path, **image, levels=2, factors=(2, 2, 2), method="max") as writer:
            skipped, _ = record(writer, 9, int(random.integers(1, 3000)))
        fine, coarse = open_image(path).levels
        check(fine, skipped)
        wanted = np.zeros((-(-len(fine) // 2), 4, 4), "uint16")
        for at, values in enumerate(fine.read().reshape(-1, 4, 2, 4, 2).max(axis=(2, 4))):
            np.maximum(wanted[at // 2], values, out=wanted[at // 2])
        assert np.array_equal(coarse.read(), wanted)


def test_an_interrupt_while_a_frame_waits_for_memory(tmp_path):
    writer = create(tmp_path / "a", (None, 8, 8), "uint16", (2, 8, 8), (4, 8, 8))
    for number in range(4):
        writer.append(frame(number), metadata={"number": number})
    wait = writer._pipeline._wait_for_blocks

    def interrupt():
        writer._pipeline._wait_for_blocks = wait
        raise KeyboardInterrupt

    writer._pipeline._wait_for_blocks = interrupt
    with pytest.raises(KeyboardInterrupt):
        writer.append(frame(4), metadata={"number": 4})
    writer.flush()
    check(open_store(tmp_path / "a"), ())
    writer.append(frame(4), metadata={"number": 4})
    writer.close()
    check(open_store(tmp_path / "a"), ())


def test_an_interrupt_waits_for_the_end():
    done = []

    def work():
        signal.raise_signal(signal.SIGINT)
        done.append(1)

    with pytest.raises(KeyboardInterrupt):
        uninterrupted(work)
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

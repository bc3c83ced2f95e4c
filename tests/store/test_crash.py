"""A recording of several positions, in five dimensions and with metadata of frames, is killed."""

import json
import os
import signal
import time

import numpy as np
import pytest
import zarr

from weft.store import create_positions, open_positions

SHAPE = (None, 2, 3, 16, 16)
CHUNKS, SHARDS = (1, 1, 1, 16, 16), (2, 2, 3, 16, 16)
POSITIONS = ("left", "middle", "right")
FRAMES = 60
"""Planes of each position: ten time points."""


def plane(position, number):
    """Return the plane of a position; None for one that was dropped."""
    if number % 11 == 5:
        return None
    return np.full((16, 16), 1000 * position + number + 1, "uint16")


def metadata(position, number):
    """Return what the writer says of a plane; some have no metadata."""
    return {"delta_t": number / 8, "where": POSITIONS[position]} if number % 7 else None


def append(writer, position, number):
    values = plane(position, number)
    if values is None:
        writer.skip()
    else:
        writer.append(values, metadata=metadata(position, number))


def record(path, say, codecs="zstd"):
    """Record without an end in sight; say what is safe, as often as possible."""
    more = {"shape": SHAPE, "dtype": "u2", "chunks": CHUNKS, "shards": SHARDS, "axes": "tczyx"}
    with create_positions(path, levels=2, codecs=codecs, **more) as recording:
        writers = [recording.position(name) for name in POSITIONS]
        for number in range(FRAMES):
            for position, writer in enumerate(writers):
                append(writer, position, number)
                if number % 13 == 3 * position:
                    writer.flush()
                if number == 20:
                    writer.attrs["note"] = position
                say([each.safe for each in writers])
            time.sleep(0.001)
        time.sleep(600)


def killed(path, delay):
    """Record in a child, kill it after some seconds, and return what it had said."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        try:
            record(path, lambda safe: os.write(write, json.dumps(safe).encode() + b"\n"))
        finally:
            os._exit(1)
    os.close(write)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the recording ended by itself"
    with os.fdopen(read, "rb") as pipe:
        said = [json.loads(line) for line in pipe if line.endswith(b"\n")]
    return said[-1] if said else [0] * len(POSITIONS)


def check(path, position, image, said):
    """Check everything that is promised; return the number of planes."""
    finest, table = image.levels[0], image.frames
    count = len(table)
    assert count >= said
    wanted = [plane(position, number) for number in range(count)]
    found = finest.read().reshape(-1, 16, 16)
    for number, values in enumerate(wanted):
        assert np.array_equal(found[number], 0 * found[0] if values is None else values)
    assert list(table) == [
        {} if wanted[number] is None else metadata(position, number) or {}
        for number in range(count)
    ]
    assert table.dropped.tolist() == [n for n, values in enumerate(wanted) if values is None]
    rows = finest.shape[0]
    assert [level.shape[0] for level in image.levels] == [rows, rows], path
    finest.verify()
    return count


def check_kill(path, delay):
    """Kill a recording, look at what is left, and finish it."""
    said = killed(path, delay)
    if not (path / "zarr.json").exists():
        assert not any(said)
        return said, said
    with open_positions(path, "a") as recording:
        missing = [name for name in POSITIONS if name not in recording.names]
        writers = [recording[name] for name in recording.names]
        writers += [recording.position(name, **again()) for name in missing]
        seen = open_positions(path)
        counts = [
            check(path, position, seen[name], said[position])
            for position, name in enumerate(POSITIONS)
        ]
        assert [writer.frames for writer in writers] == counts
        for number in range(FRAMES):
            for position, writer in enumerate(writers):
                if number >= counts[position]:
                    append(writer, position, number)
    for position, name in enumerate(POSITIONS):
        image = open_positions(path)[name]
        assert check(path, position, image, FRAMES) == FRAMES
        for level in image.levels:
            level.verify()
        coarse = image.levels[1].read()
        assert np.array_equal(coarse, image.levels[0].read()[..., ::2, ::2])
    root = zarr.open_group(path, mode="r")
    assert root["1/0"][9, 1, 2, 0, 0] == 1000 + FRAMES
    return said, counts


def again():
    more = {"shape": SHAPE, "dtype": "u2", "chunks": CHUNKS, "shards": SHARDS, "axes": "tczyx"}
    return more | {"levels": 2, "codecs": "zstd"}


def test_a_recording_that_is_killed_is_continued(tmp_path):
    seen = [check_kill(tmp_path / str(number), 0.1 + 0.2 * number) for number in range(3)]
    assert any(sum(said) for said, _ in seen)


@pytest.mark.slow
def test_a_recording_that_is_killed_at_any_moment_is_continued(tmp_path):
    rng, seen = np.random.default_rng(0), set()
    for number in range(100):
        said, counts = check_kill(tmp_path / str(number), float(rng.uniform(0, 0.8)))
        seen |= {tuple(said), tuple(counts)}
    assert len(seen) > 20

"""A recording of several positions, in five dimensions and with metadata of frames, is killed."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
import zarr
from tests.store.endless_recording import (
    CHUNKS,
    FRAMES,
    POSITIONS,
    SHAPE,
    SHARDS,
    append,
    metadata,
    plane,
)

from weft.store import open_positions


def killed(path, lines):
    """Record in a process, kill it when it has said so many lines, and return the last of all.

    It waits a few lines later, so that on a busy machine it does not come to its end.
    """
    command = [sys.executable, "-m", "tests.store.endless_recording", str(path), str(lines + 6)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        said = b"".join(process.stdout.readline() for _ in range(lines))
        process.kill()
        said += process.stdout.read()
    assert process.returncode == -signal.SIGKILL, "the recording ended by itself"
    return [json.loads(line) for line in said.splitlines(True) if line[-1:] == b"\n"][-1]


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


def check_kill(path, lines):
    """Kill a recording, look at what is left, and finish it."""
    said = killed(path, lines)
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
    seen = [check_kill(tmp_path / str(lines), lines) for lines in (1, 40, 150)]
    assert any(sum(said) for said, _ in seen)


@pytest.mark.slow
def test_a_recording_that_is_killed_at_any_moment_is_continued(tmp_path):
    rng, seen = np.random.default_rng(0), set()
    for number in range(100):
        said, counts = check_kill(tmp_path / str(number), int(rng.integers(1, 3 * FRAMES)))
        seen |= {tuple(said), tuple(counts)}
    assert len(seen) > 20

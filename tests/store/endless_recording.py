"""A process that records several positions until it is killed: `python -m … PATH LINES`.

It says what is safe, a JSON list on a line, after each frame, and waits after so many lines.
"""

import json
import sys
import time

import numpy as np

from weft.store import create_positions

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


class Speaker:
    """Says what is safe, until it has said enough."""

    def __init__(self, lines):
        self.left = lines

    def say(self, safe):
        print(json.dumps(safe), flush=True)
        self.left -= 1
        if not self.left:
            time.sleep(600)


if __name__ == "__main__":
    speaker = Speaker(int(sys.argv[2]))
    speaker.say([0] * len(POSITIONS))
    record(sys.argv[1], speaker.say)

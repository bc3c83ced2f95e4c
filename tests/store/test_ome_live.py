"""Images that are read while they are written: the lengths of their levels belong together."""

import json
import threading

import numpy as np
import pytest
from tests.store.windows import brute

from weft.store.ome.image import create_image, open_image

CASES = {
    "time": {
        "shape": (None, 8, 8),
        "chunks": (3, 8, 8),
        "shards": (12, 8, 8),
        "axes": "tyx",
        "factors": (2, 2, 2),
        "levels": 4,
    },
    "planes": {
        "shape": (None, 3, 5, 8, 8),
        "chunks": (2, 1, 2, 8, 8),
        "axes": "tczyx",
        "factors": (1, 1, 2, 2, 2),
        "levels": 3,
    },
    "both": {
        "shape": (None, 3, 8, 8),
        "chunks": (1, 1, 8, 8),
        "shards": (4, 2, 8, 8),
        "axes": "tzyx",
        "factors": (3, 2, 2, 2),
        "levels": 3,
    },
    "slices": {
        "shape": (2, None, 8, 8),
        "chunks": (1, 2, 8, 8),
        "axes": "tzyx",
        "factors": (1, 2, 2, 2),
        "levels": 3,
        "append_dim": 1,
    },
}


class Watcher:
    """Reads the lengths of an image again and again, in a thread."""

    def __init__(self, path, factor, dim):
        self.path, self.factor, self.dim = path, factor, dim
        self.seen, self.error, self.is_done = set(), None, False
        self.looks = threading.Semaphore(0)
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.is_done = True
        self.thread.join()
        if self.error is not None:
            raise self.error

    def run(self):
        try:
            while not self.is_done:
                self.look()
                self.looks.release()
        except BaseException as error:
            self.error = error

    def await_look(self):
        """Wait until the image was read once more, however busy the machine is."""
        while self.looks.acquire(blocking=False):
            pass
        for _ in range(2):  # the first may have begun before
            while self.thread.is_alive() and not self.looks.acquire(timeout=1):
                pass

    def look(self):
        image = open_image(self.path)
        lengths = [level.shape[self.dim] for level in image.levels]
        self.seen.add(tuple(lengths))
        for number, length in enumerate(lengths):
            size = self.factor**number
            assert length in (lengths[0] // size, -(-lengths[0] // size)), lengths
        files = [
            json.loads((self.path / str(number) / "zarr.json").read_text())["shape"][self.dim]
            for number in range(len(lengths))
        ]
        for number, length in enumerate(files):
            assert length >= files[0] // self.factor**number, "a file that was read later"


@pytest.mark.parametrize("name", CASES)
def test_lengths_belong_together_at_any_moment(tmp_path, name):
    case = CASES[name]
    dim = case.get("append_dim", 0)
    inner = [n for n in case["shape"] if n is not None]
    rows = 23
    array = np.random.default_rng(3).integers(0, 250, (rows, *inner)).astype("uint8")
    with create_image(tmp_path / "a", dtype="uint8", **case):
        pass
    with Watcher(tmp_path / "a", case["factors"][dim], dim) as watcher:
        for start, stop in [(0, 11), (11, 14), (14, rows)]:
            with open_image(tmp_path / "a", mode="a") as writer:
                frames = array[start:stop].reshape(-1, *inner[-2:])
                for number, frame in enumerate(frames):
                    writer.append(frame)
                    if number % (len(frames) // 3) == 2:
                        writer.flush()
                        assert open_image(tmp_path / "a").frames is not None
                        assert writer.safe == writer.frames
                        watcher.await_look()
    assert len(watcher.seen) > 3, "it was read while it grew"
    wanted = np.moveaxis(array, 0, dim)
    for level in open_image(tmp_path / "a").levels:
        level.verify()
        assert np.array_equal(level.read(), wanted)
        factors = case["factors"]
        shape = [-(-n // f) for n, f in zip(wanted.shape, factors)]
        wanted = brute(wanted, wanted.size, factors, "mean", "uint8").reshape(shape)


def test_windows_that_are_shown_are_complete(tmp_path):
    """Without a flush too: what a coarser level shows are means of frames that are there."""
    array = np.random.default_rng(1).integers(0, 250, (64, 16, 16)).astype("uint8")
    shown = set()
    with create_image(
        tmp_path / "a",
        (None, 16, 16),
        "uint8",
        (2, 8, 8),
        (16, 16, 16),
        axes="tyx",
        factors=(2, 2, 2),
        levels=3,
    ) as writer:
        for frame in array:
            writer.append(frame)
            safe, image = writer.safe, open_image(tmp_path / "a")
            lengths = [level.shape[0] for level in image.levels]
            shown.add(lengths[0])
            for number, length in enumerate(lengths):  # a level that was opened later may be longer
                assert 0 <= length - lengths[0] // 2**number <= 1
            assert safe <= lengths[0]
            values = image.levels[1].read().astype(int)
            split = array[: 2 * lengths[1]].astype(int).reshape(lengths[1], 2, 8, 2, 8, 2)
            assert np.array_equal(values, (split.sum(axis=(1, 3, 5)) + 4) // 8)
    assert [level.shape[0] for level in open_image(tmp_path / "a").levels] == [64, 32, 16]

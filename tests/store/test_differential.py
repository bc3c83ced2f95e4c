"""Random recordings against NumPy, by compiled code and without it: any dtype and layout."""

import random
import sys

import numpy as np
import pytest
from ml_dtypes import bfloat16
from tests.trials import trials

from weft.store import Blosc, Gzip, create, native, pipeline, scatter
from weft.store import open as open_store
from weft.store.dtypes import NAMES

CODECS = [(), "zstd", "blosc-lz4", "blosc-zstd", Gzip(1), Blosc("lz4hc", 3, "bitshuffle")]


def dtype_of(name):
    return np.dtype(bfloat16 if name == "bfloat16" else name)


def fill_of(choice, name):
    if name == "bool":
        return choice([False, True])
    if "int" in name:
        return choice([0, 1, int(np.iinfo(name).min), int(np.iinfo(name).max)])
    numbers = [0, -0.0, 1.5, float("nan"), float("-inf")]
    if name.startswith("complex"):
        return complex(choice(numbers), choice(numbers))
    return choice(numbers)


def values_of(rng, name, shape, fill):
    """Random bits; some, or all, are the fill value."""
    kind = dtype_of(name)
    bits = rng.integers(0, 2 if name == "bool" else 256, (*shape, kind.itemsize), dtype=np.uint8)
    values = bits.view(kind)[..., 0]
    values[rng.random(shape) < rng.choice([0, 0.9, 1])] = np.array(fill).astype(kind)
    return values


def laid_out(choice, block):
    """The same values in memory of another layout, alignment or byte order."""
    if not block.size or not block.ndim:
        return block
    wide = np.zeros([2 * n + 1 for n in block.shape], block.dtype)
    apart = wide[tuple(slice(1, None, 2) for _ in block.shape)]
    apart[...] = block
    odd = np.zeros(block.nbytes + 1, np.uint8)[1:].view(block.dtype).reshape(block.shape)
    odd[...] = block
    swapped = block if block.dtype == bfloat16 else block.astype(block.dtype.newbyteorder())
    backwards = block[::-1, ...].copy()[::-1]
    return choice([block, np.asfortranarray(block), apart, odd, swapped, backwards])


def bits(values):
    return np.ascontiguousarray(values).tobytes()


def files(path):
    found = (file for file in sorted(path.rglob("*")) if file.is_file())
    return {file.relative_to(path): file.read_bytes() for file in found if file.name[0] != "."}


def record(path, seed, array, frames, fill):
    """Append frames in some way that the seed says; return what they should read as."""
    choice = random.Random(seed)
    writer = create(path, **array)
    wanted = frames.copy().reshape(-1, *writer.frame)
    frames, at = frames.reshape(wanted.shape), 0
    while at < len(frames):
        match choice.choice("aabbsfc"):
            case "a":
                writer.append(laid_out(choice.choice, np.asarray(frames[at])))
                at += 1
            case "b":
                some = frames[at : at + choice.randint(1, 9)]
                writer.append(laid_out(choice.choice, some))
                at += len(some)
            case "s":
                count = min(len(frames) - at, choice.randint(0, 5))
                writer.skip(count)
                wanted[at : at + count] = fill
                at += count
            case "f":
                writer.flush()
                assert writer.safe == at
            case "c":
                writer.close()
                writer = open_store(path, mode="a")
                assert writer.frames == at
    writer.close()
    return wanted


@pytest.mark.random
def test_recordings_are_what_numpy_holds_with_compiled_code_and_without(tmp_path, monkeypatch):
    compiled = native.compiled
    for seed in range(trials(60)):
        choose = random.Random(seed)
        rank, name = choose.randint(1, 5), choose.choice(NAMES)
        chunks = [choose.choice([1, 1, 2, 3, 5, 8]) for _ in range(rank)]
        shape = [choose.choice([1, 2, 3, 5, 9]) for _ in range(rank)]
        order = choose.sample(range(rank), rank)
        fill = fill_of(choose.choice, name)
        array = {
            "shape": [None if dim == order[0] else n for dim, n in enumerate(shape)],
            "dtype": name,
            "chunks": chunks,
            "shards": [n * choose.randint(1, 3) for n in chunks],
            "codecs": choose.choice(CODECS),
            "checksum": choose.random() < 0.7,
            "fill_value": fill,
            "axis_order": order,
            "append_dim": order[0],
            "order": choose.choice([(), choose.sample(range(rank), rank)]),
            "endian": choose.choice(["little", "big"]),
            "index_location": choose.choice(["start", "end"]),
        }
        rows = choose.choice([1, 3, 7, 20])
        shape[order[0]] = rows
        arrival = [shape[dim] for dim in order]
        frames = values_of(np.random.default_rng(seed), name, arrival, fill)
        monkeypatch.setattr(scatter, "LARGE", choose.choice([1 << 26, 64]))
        monkeypatch.setattr(pipeline, "BATCH", choose.choice([1 << 22, 200]))
        plane = choose.choice([1 << 24, 64])
        monkeypatch.setattr(sys.modules["weft.store.create"], "MAX_PLANE", plane)
        stored = []
        for way in (compiled, lambda: None):
            monkeypatch.setattr(native, "compiled", way)
            path = tmp_path / f"{seed}-{len(stored)}"
            wanted = record(path, seed, array, frames, np.array(fill).astype(frames.dtype))
            found = open_store(path)
            stored.append(files(path))
            places = wanted.reshape(arrival).transpose(np.argsort(order))
            assert bits(found.read()) == bits(places), (seed, array)
            found.verify()
        assert stored[0] == stored[1], (seed, array)

"""The loop copies the bytes it is asked to, and touches no other."""

import ctypes
import mmap
import platform
import shutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from weft.ttmesh import blocks, streams
from weft.ttmesh.streams import Pair, copy, entries

HERE = sys.platform == "linux" and platform.machine() == "x86_64"
here = pytest.mark.skipif(not HERE, reason="the loop is for Linux on x86-64")


@here
@pytest.mark.skipif(shutil.which("as") is None, reason="no assembler")
def test_the_listing_is_what_it_says(tmp_path):
    lines = [line if line.endswith(":") else line[16:] for line in streams.LISTING.splitlines()]
    source, made = tmp_path / "loop.s", tmp_path / "loop.o"
    source.write_text("\n".join([".intel_syntax noprefix", *lines, ""]))
    subprocess.run(["as", source, "-o", made], check=True)
    assert streams.code() in made.read_bytes()
    assert len(streams.code()) == 339


def runs(memory, offset, shape, step):
    """Views of two dimensions of rows, and one of runs, each `step` bytes after the other."""
    pairs, rows, run = shape
    strides = (rows * step, step, 1)
    return as_strided(memory[offset:], (pairs, rows, run), strides)


@here
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 300)),
    st.tuples(st.integers(0, 70), st.integers(0, 70)),
    st.tuples(st.integers(0, 40), st.integers(0, 40)),
    st.booleans(),
)
def test_runs_of_any_length_and_place(shape, offsets, gaps, past):
    room = offsets[0] + shape[0] * shape[1] * (shape[2] + gaps[0]) + 200
    memory = np.random.default_rng(1).integers(0, 255, 8000, dtype=np.uint8)
    target = np.random.default_rng(2).integers(0, 255, room, dtype=np.uint8)
    wanted = target.copy()
    source = runs(memory, offsets[1], shape, shape[2] + gaps[1])
    runs(wanted, offsets[0], shape, shape[2] + gaps[0])[...] = source
    views = runs(target, offsets[0], shape, shape[2] + gaps[0])
    table, rows = entries([Pair(*pair) for pair in zip(views, source)], past)
    copy(table, slice(0, rows), slice(0, len(table)), slice(0, shape[2]))
    assert target.tobytes() == wanted.tobytes()


@here
@given(st.integers(1, 200), st.booleans())
def test_no_byte_beside_a_run_is_even_read(length, past):
    """Pages on both sides may not be touched: the loop would not come back."""
    for source in fenced(length):
        for target in fenced(length):
            source[:] = np.arange(length)
            table, _ = entries([Pair(target[None], source[None])], past)
            copy(table, slice(0, 1), slice(0, 1), slice(0, length))
            assert (target == source).all()


def fenced(length):
    """Bytes at the start, and at the end, of a page between two that are not there."""
    page = mmap.PAGESIZE
    pages = np.frombuffer(mmap.mmap(-1, 3 * page), np.uint8)
    protect = ctypes.CDLL(None).mprotect
    for start in (0, 2 * page):
        assert protect(ctypes.c_void_p(pages.ctypes.data + start), page, 0) == 0
    return pages[page : page + length], pages[2 * page - length : 2 * page]


@here
def test_the_largest_dimension_is_walked_and_pairs_lie_side_by_side():
    array = np.zeros((5, 2, 24), np.uint8)
    pairs = [Pair(np.zeros((5, 2, 8), np.uint8), array[..., k : k + 8]) for k in (0, 8, 16)]
    table, rows = entries(pairs, True)
    assert rows == 5
    assert (table[:, 1] - array.ctypes.data).tolist() == [0, 8, 16, 24, 32, 40]
    assert table[:, 2:].tolist() == [[16, 48, 8, 1]] * 6


@here
def test_the_loop_is_there():
    assert streams.loop() is not None


def test_elsewhere_there_is_none_and_numpy_copies(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert streams.loop.__wrapped__() is None
    monkeypatch.setattr(streams, "loop", lambda: None)
    array = np.arange(2 << 20).reshape(-1, 512)
    target = np.zeros_like(array[:, :256])
    blocks.copy_all([Pair(target, array[:, 256:])])
    assert (target == array[:, 256:]).all()


@here
def test_where_memory_may_not_be_run_there_is_none(monkeypatch):
    def refuse(*_):
        raise PermissionError("no")

    monkeypatch.setattr(mmap, "mmap", refuse)
    assert streams.loop.__wrapped__() is None


@here
def test_a_variable_turns_the_loop_off(monkeypatch):
    assert streams.loop.__wrapped__() is not None
    monkeypatch.setenv("WEFT_PURE", "1")
    assert streams.loop.__wrapped__() is None

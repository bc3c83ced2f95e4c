"""The kernels on the host: compiled by g++, block by block, in buffers with guards around them."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import weft.store
from weft.store.cuda.device import inlined, kernel_text

KERNELS = Path(weft.store.__file__).parent / "cuda" / "kernels"
GUARD = 64
LIBRARIES = {}
"""What this process has compiled, by its source."""


class Host:
    """The kernels of a file as functions: `host.launch(name, blocks, *arguments)`."""

    def __init__(self, folder, name="encode.cu", before=""):
        text = inlined(f"{before}\n{kernel_text(name)}")
        if text not in LIBRARIES:
            LIBRARIES[text] = self._compiled(text, folder / name)
        self.library = LIBRARIES[text]
        self.rng = np.random.default_rng(0)

    def _compiled(self, text, source):
        library = source.with_suffix(".so")
        source.write_text(text, encoding="utf-8")
        kinds = ["-x", "c++", "-std=c++17", "-O1", "-fno-strict-aliasing", "-shared", "-fPIC"]
        checks = ["-fsanitize=undefined", "-fno-sanitize-recover=all"]  # bounds, alignment
        warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
        subprocess.run(["g++", *kinds, *checks, *warnings, "-o", library, source], check=True)
        return ctypes.CDLL(str(library))

    def launch(self, name, blocks, *arguments):
        kernel = getattr(self.library, name)
        block = ctypes.c_uint64.in_dll(self.library, "weft_block")
        order = ctypes.c_int.in_dll(self.library, "weft_is_backward")
        given = [taken(argument) for argument in arguments]
        for number in self.rng.permutation(blocks):
            block.value, order.value = int(number), int(self.rng.integers(2))
            kernel(*given)
        for argument in arguments:
            if isinstance(argument, Buffer):
                argument.check()


class Buffer:
    """An array at an address that is so far from a multiple of 64, with guards on both sides."""

    def __init__(self, array, shift=0):
        array = np.ascontiguousarray(array)
        self._whole = np.full(array.nbytes + 2 * GUARD + 64, 0x5A, np.uint8)
        start = GUARD + shift - self._whole[GUARD:].ctypes.data % 64
        start += 64 if start < GUARD else 0
        self.span = start, start + array.nbytes
        self.array = self._whole[slice(*self.span)].view(array.dtype).reshape(array.shape)
        self.array[...] = array

    def check(self):
        start, stop = self.span
        assert (self._whole[:start] == 0x5A).all()
        assert (self._whole[stop:] == 0x5A).all()


def empty(count, dtype, shift=0):
    """A buffer that is full of what no kernel should leave."""
    bytes_ = np.full(count * np.dtype(dtype).itemsize, 0xC3, np.uint8)
    return Buffer(bytes_.view(dtype), shift)


def taken(argument):
    if isinstance(argument, Buffer):
        return ctypes.c_void_p(argument.array.ctypes.data)
    kind, value = argument
    return {"u32": ctypes.c_uint32, "u64": ctypes.c_uint64}[kind](value)


def u32(value):
    return "u32", value


def u64(value):
    return "u64", value


def needs_compiler():
    if shutil.which("g++") is None:
        pytest.skip("no g++ to compile the kernels for the host")


@pytest.fixture(scope="session")
def host(tmp_path_factory):
    needs_compiler()
    return Host(tmp_path_factory.mktemp("kernels"))

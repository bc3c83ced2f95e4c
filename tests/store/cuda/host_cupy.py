"""As much of CuPy as the store uses, on the host: its memory, and kernels compiled by g++.

Everything is done at once, so that streams and events have nothing to order; all else is as it is
on a device: pointers, sizes, launches, and the kernels themselves.
"""

import ctypes
import hashlib
import subprocess
import threading
import types

import numpy as np

LAUNCH = threading.Lock()
LIBRARIES = {}
"""What this process has compiled, by the hash of its source."""


class Pointer:
    def __init__(self, array):
        self.ptr = array.ctypes.data


class Array:
    """An array of the device: not one of NumPy, and NumPy does not see inside."""

    def __init__(self, array, dtype=None, pointer=None):
        if isinstance(array, tuple):  # as CuPy makes one of a shape and memory: aligned
            whole = np.full(array[0] + 64, 0xC3, np.uint8)
            start = -whole.ctypes.data % 64
            array = whole[start : start + array[0]].view(dtype)
        self.array = array

    @property
    def data(self):
        return Pointer(self.array)

    shape = property(lambda self: self.array.shape)
    dtype = property(lambda self: self.array.dtype)
    ndim = property(lambda self: self.array.ndim)
    size = property(lambda self: self.array.size)
    flags = property(lambda self: self.array.flags)
    device = property(lambda self: Device())
    nbytes = property(lambda self: self.array.nbytes)

    def __len__(self):
        return len(self.array)

    def __getitem__(self, key):
        return Array(self.array[key])

    def __setitem__(self, key, value):
        self.array[key] = value.array if isinstance(value, Array) else value

    def reshape(self, *shape):
        return Array(self.array.reshape(*shape))

    def view(self, dtype):
        return Array(self.array.view(dtype))

    def astype(self, dtype, copy=True):
        return Array(self.array.astype(dtype, copy=copy))

    def copy(self):
        return Array(self.array.copy())

    def get(self):
        return self.array.copy()

    def set(self, values):
        self.array[...] = values

    def __dlpack_device__(self):
        return 2, 0


class Device:
    def __init__(self, number=0):
        self.id = number

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Event:
    done = True

    def __init__(self, block=False):
        pass

    def record(self, stream=None):
        return self

    def synchronize(self):
        pass


class Stream:
    ptr = 0

    def __init__(self, non_blocking=False, priority=0):
        pass

    def record(self, event=None):
        return event or Event()

    def wait_event(self, event):
        pass

    def synchronize(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Kernel:
    def __init__(self, library, name):
        self.library, self.call = library, getattr(library, name)

    def __call__(self, grid, block, given):
        kinds = {np.uint32: ctypes.c_uint32, np.uint64: ctypes.c_uint64}
        given = [
            ctypes.c_void_p(one.data.ptr) if isinstance(one, Array) else kinds[type(one)](int(one))
            for one in given
        ]
        number = ctypes.c_uint64.in_dll(self.library, "weft_block")
        assert block in ((256,), (64,))
        with LAUNCH:  # its blocks share variables, and other threads launch too
            for number.value in range(grid[0]):
                self.call(*given)


class Host:
    """The module that `import cupy` gives instead."""

    def __init__(self, folder):
        self.folder = folder
        self.ndarray = Array
        for name in ("uint8", "uint32", "uint64", "int32"):
            setattr(self, name, getattr(np, name))
        runtime = types.SimpleNamespace(
            memcpyDefault=4,
            memcpyHostToDevice=1,
            memoryTypeHost=1,
            CUDARuntimeError=RuntimeError,
            getDeviceCount=lambda: 1,
            memcpyAsync=lambda to, source, size, kind, stream: ctypes.memmove(to, source, size),
            memsetAsync=lambda to, value, size, stream: ctypes.memset(to, value, size),
            pointerGetAttributes=lambda pointer: types.SimpleNamespace(type=0),
        )
        self.cuda = types.SimpleNamespace(
            runtime=runtime,
            Stream=Stream,
            Event=Event,
            Device=Device,
            memory=types.SimpleNamespace(OutOfMemoryError=MemoryError),
            Memory=lambda size: size,
            PinnedMemory=lambda size: size,
            MemoryPointer=lambda size, offset: size,
            PinnedMemoryPointer=lambda size, offset: bytearray(size),
            get_current_stream=Stream,
            get_elapsed_time=lambda one, two: 1e-3,
        )

    def asarray(self, values):
        return values if isinstance(values, Array) else Array(np.array(values))  # a copy

    from_dlpack = asarray

    def ascontiguousarray(self, values):
        return Array(np.ascontiguousarray(values.array))

    def empty(self, shape, dtype):
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return Array((count,), np.uint8).view(dtype).reshape(shape)

    def concatenate(self, parts):
        return Array(np.concatenate([part.array for part in parts]))

    def repeat(self, values, count):
        return Array(np.repeat(values.array, count))

    def RawModule(self, code, options):  # noqa: N802 - CuPy's name
        assert options == ("-std=c++17",)
        return types.SimpleNamespace(get_function=lambda name: Kernel(self._compiled(code), name))

    def _compiled(self, code):
        key = hashlib.sha256(code.encode()).hexdigest()[:16]
        if key not in LIBRARIES:
            source, made = self.folder / f"{key}.cu", self.folder / f"{key}.so"
            source.write_text(code, encoding="utf-8")
            flags = ["-x", "c++", "-std=c++17", "-O1", "-fno-strict-aliasing", "-shared", "-fPIC"]
            subprocess.run(["g++", *flags, "-o", made, source], check=True)
            LIBRARIES[key] = ctypes.CDLL(str(made))
        return LIBRARIES[key]

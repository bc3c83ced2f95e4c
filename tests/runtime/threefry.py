"""Random numbers in plain NumPy, by Threefry of the whole array."""

import numpy as np


def words(seed, shape):
    """A random word for each element: those of a key and of the element's number."""
    size = int(np.prod(shape, dtype=int))
    keys = np.asarray([seed >> 32, seed & 0xFFFFFFFF, 0], "uint32")
    keys[2] = keys[0] ^ keys[1] ^ np.uint32(0x1BD11BDA)
    x, y = np.zeros(size, "uint32") + keys[:1], np.arange(size, dtype="uint32") + keys[1:2]
    for step in range(5):
        for by in ((13, 15, 26, 6), (17, 29, 16, 24))[step % 2]:
            x = x + y
            y = ((y << by) | (y >> (32 - by))) ^ x
        x = x + keys[(step + 1) % 3]
        y = y + keys[(step + 2) % 3] + np.uint32(step + 1)
    return (x ^ y).reshape(shape)


def uniform(seed, shape):
    """Floats from 0 to below 1: the upper 23 bits of each word."""
    return (words(seed, shape) >> 9).astype("float32") * np.float32(2**-23)


def dropout(x, rate, seed):
    """The array with zeros at a rate, and the other elements scaled."""
    kept = uniform(seed, x.shape) < 1 - rate
    return np.where(kept, x / x.dtype.type(1 - rate), x.dtype.type(0))

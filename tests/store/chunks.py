"""Chunks of bytes, of all kinds that an encoder may meet."""

import numpy as np

KINDS = 8


def chunks(rng, count, size, kind):
    """Rows of bytes: noise of all widths, runs, signals, one value."""
    shape = count, size
    match kind:
        case 0:
            made = rng.integers(0, 256, shape)
        case 1:
            made = rng.integers(0, int(rng.integers(2, 20)), shape)
        case 2:
            made = np.full(shape, rng.integers(0, 256))
        case 3:
            made = np.repeat(rng.integers(0, 256, shape), int(rng.integers(2, 30)), axis=1)
        case 4:
            made = rng.integers(0, 256, shape) * (rng.random(shape) < rng.random() ** 4)
        case 5:
            made = rng.poisson(rng.integers(1, 200), shape) % 256
        case 6:
            made = noisy(rng, count * size // 2 + 1).view(np.uint8)[: count * size].reshape(shape)
        case _:
            made = np.floor(255 * rng.random(shape) ** rng.integers(2, 9))
    return np.ascontiguousarray(made[:, :size].astype(np.uint8))


def noisy(rng, count):
    """Elements of uint16: a smooth signal, and the noise of counting photons."""
    x = np.arange(count)
    return rng.poisson(200 + 100 * np.sin(x / 40) + 80 * np.cos(x / 4096 / 3)).astype(np.uint16)

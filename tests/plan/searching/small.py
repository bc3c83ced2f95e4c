"""Small random programs, and machines that make their plans differ."""

from random import Random

from weft import DeviceMesh, Machine, ops, trace

LINE = DeviceMesh("m", (2,), ("x",))
GRID = DeviceMesh("m", (2, 2), ("x", "y"))
CUBE = DeviceMesh("m", (2, 2, 2), ("x", "y", "z"))


def machine(rng):
    """A slow machine with random rates, so that nothing is free."""
    return Machine(
        latency=rng.choice([0.0, 1e-7, 1e-6]),
        bandwidth=rng.choice([1e8, 1e9]),
        flops={"float32": rng.choice([1e9, 1e10])},
        memory_bandwidth=rng.choice([1e9, 1e10]),
        overlap=rng.choice([0.0, 0.0, 0.5]),
    )


def program(seed, count):
    """A program of some operators on two or three square arrays, or uneven ones."""
    rng = Random(seed)
    size = rng.choice([4, 4, 6, 5])

    def body(x, w):
        values = [x, w]
        for _ in range(count):
            one, two = rng.choice(values), rng.choice(values)
            kind = rng.randrange(6)
            if kind <= 1:
                made = one @ two
            elif kind == 2:
                made = one + two
            elif kind == 3:
                made = ops.relu(one)
            elif kind == 4:
                made = one * one.sum(rng.randrange(2), keepdims=True)
            else:
                made = ops.transpose(one, (1, 0))
            values.append(made)
        return tuple(values[-2:]) if rng.random() < 0.2 else values[-1]

    return trace(body, (size, size), (size, size))

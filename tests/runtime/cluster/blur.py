"""A volume that is blurred and averaged: the program that runs from storage to storage."""

import numpy as np

from weft import Plan, ops, propagate, trace
from weft.lang import OPERATORS, Operator, Signature
from weft.lang.arithmetic import apply_all

RADIUS = 3
WEIGHTS = np.exp(-(np.arange(-RADIUS, RADIUS + 1) ** 2) / 4).astype("float32")


def signed(dim):
    """The line of a correlation along one dimension of three, zero beyond the ends."""

    def sign(shapes, attributes):
        names = "zyx"
        rows = [f"{n}+u-{RADIUS}" if d == dim else n for d, n in enumerate(names)]
        size = {names[dim]: shapes[0][dim]}
        return Signature.of(f"{' '.join(rows)}, u -> z y x  sum: u", shapes, sizes=size)

    return sign


def kernel_of(dim):
    def kernel(block, x, weights):
        first = block.image(0).start[dim] - block.operands[0].start[dim]
        made, before = np.zeros(block.results[0].shape, x.dtype), (slice(None),) * dim
        for tap, weight in enumerate(weights):
            # Where this tap reads inside the array, as places of the result.
            low = max(0, -(first + tap))
            high = min(made.shape[dim], x.shape[dim] - first - tap)
            if low < high:
                inside = slice(low + first + tap, high + first + tap)
                made[(*before, slice(low, high))] += weight * x[(*before, inside)]
        return made

    return kernel


def add_operators(library=OPERATORS):
    for dim, name in enumerate("zyx"):
        if f"blur_{name}" not in library:
            library.add(Operator(f"blur_{name}", signed(dim), kernel_of(dim), flops=2))


def plan_of(shape, cells=2, cut="z", keep=True):
    """The plan of the blur, with the volume kept or not, and of the mean of it over z."""
    add_operators()

    def program(x, w):
        for name in "xyz":
            (x,) = apply_all(f"blur_{name}", x, w)
        return (x, ops.mean(x, 0)) if keep else ops.mean(x, 0)

    dims = ", ".join('{"w"}' if name == cut else "{}" for name in "zyx")
    return Plan.of(
        propagate(
            trace(
                program,
                shape,
                (2 * RADIUS + 1,),
                meshes=[f'@m = <["w"={cells}]>'],
                shardings={"x": f"<@m, [{dims}]>"},
            )
        )
    )


def blurred(x):
    """The same in NumPy alone."""
    for dim in (2, 1, 0):
        around = [(RADIUS, RADIUS) if d == dim else (0, 0) for d in range(3)]
        wide, made = np.pad(x, around), np.zeros_like(x)
        for tap, weight in enumerate(WEIGHTS):
            inside = slice(tap, tap + x.shape[dim])
            made += weight * wide[(*[slice(None)] * dim, inside)]
        x = made
    return x

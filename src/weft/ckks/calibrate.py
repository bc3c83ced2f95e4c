"""Measure the seconds of operations on real ciphertexts, and store them in a `Machine`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from time import thread_time
from typing import Any

import numpy as np

from weft.ckks.backends import Backend, Ciphertext, Seal
from weft.ckks.packing import Floats
from weft.ckks.parameters import Parameters
from weft.ckks.slot_program import OperationCounts
from weft.errors import WeftError
from weft.plan import Machine
from weft.values import as_count

MOST_LEVELS = 6
"""The most levels that are measured; those in between are interpolated."""
ENOUGH = 0.1
"""Seconds of one operation after which it is not repeated."""


@dataclass(frozen=True, slots=True)
class OperationTimes:
    """Seconds of each operation in a ring, by level; there are no products at level 0.

    >>> times = OperationTimes(8192, (0.001, 0.002), (0.0, 0.001), (0.0, 0.003), (0.0, 1e-3),
    ...                        (1e-5, 2e-5), (1e-4, 2e-4))
    >>> times.seconds(OperationCounts(plain_products=5, products=5), level=1)
    0.02
    >>> times.depth, OperationTimes.of(times.added_to(Machine()), 8192) == times
    (1, True)
    """

    ring: int
    rotation: tuple[float, ...]
    plain_product: tuple[float, ...]
    """Includes the encoding of the plaintext."""
    product: tuple[float, ...]
    """Of two ciphertexts; includes the relinearisation."""
    rescale: tuple[float, ...]
    """From the level to the one below."""
    addition: tuple[float, ...]
    plain_addition: tuple[float, ...]
    """Includes the encoding of the plaintext."""

    @property
    def depth(self) -> int:
        """The highest level that was measured."""
        return len(self.rotation) - 1

    def seconds(self, counters: OperationCounts, level: int) -> float:
        """Return the seconds of operations at a level."""
        if not 0 <= level <= self.depth:
            raise WeftError(
                f"operations at level {level} were not measured: levels 0 to {self.depth} were",
                hint="calibrate with parameters of that depth",
            )
        spent = (getattr(counters, f"{name}s") * getattr(self, name)[level] for name in ROWS)
        return float(sum(spent))

    def added_to(self, machine: Machine) -> Machine:
        """Return the machine with these times added; `Machine.save` writes them to its file."""
        rows = {name: getattr(self, name) for name in ROWS}
        return replace(machine, operations={**machine.operations, _kind(self.ring): rows})

    @classmethod
    def of(cls, machine: Machine, ring: int) -> OperationTimes:
        """Return the times of a ring in a machine.

        >>> OperationTimes.of(Machine(), 8192)
        Traceback (most recent call last):
        ...
        weft.errors.WeftError: the machine has no operation times for the ring N=8192
        hint: measure them: weft ckks calibrate --ring 8192
        """
        table = machine.operations.get(_kind(ring))
        if table is None:
            raise WeftError(
                f"the machine has no operation times for the ring N={ring}",
                hint=f"measure them: weft ckks calibrate --ring {ring}",
            )
        lengths = {name: len(table.get(name, ())) for name in ROWS}
        if len(set(lengths.values())) > 1 or not min(lengths.values()):
            raise WeftError(f"the rows of {_kind(ring)} must have one length: {lengths}")
        return cls(ring, *(table[name] for name in ROWS))


ROWS = tuple(one.name for one in fields(OperationTimes) if one.name != "ring")


def calibrate(parameters: Parameters, repeats: int = 3) -> OperationTimes:
    """Measure the operations of SEAL, the least of several repeats each, in a few seconds.

    The times at a level depend on the ring and the level, not on the depth.

    >>> times = calibrate(Parameters(4096, depth=0, special_bits=50), repeats=1)
    >>> times.rotation[0] > times.addition[0] > 0
    True
    """
    if as_count(repeats, "repeats") == 0:
        raise WeftError("repeats is 0; nothing would be measured")
    backend = Seal(parameters, rotations=[1])
    count = min(MOST_LEVELS, parameters.depth + 1)
    levels = [round(at) for at in np.linspace(min(1, parameters.depth), parameters.depth, count)]
    measured = {level: _measure(backend, level, repeats) for level in {0, *levels}}
    rows = [_row(measured, at, parameters.depth) for at in range(len(ROWS))]
    return OperationTimes(parameters.ring, *rows)


def _kind(ring: int) -> str:
    return f"ckks-{ring}"


def _measure(backend: Backend, level: int, repeats: int) -> tuple[float, ...]:
    """Return the seconds of each row at a level."""
    values = np.random.default_rng(level).uniform(-1, 1, backend.parameters.slots)
    a, b = backend.encrypt(values, level), backend.encrypt(values, level)
    rotation = _least(lambda: backend.rotate(a, 1), repeats)
    additions = (
        _least(lambda: backend.add(a, b), repeats),
        _least(lambda: backend.add_plain(a, values), repeats),
    )
    return rotation, *_products(backend, a, b, values, repeats), *additions


def _products(
    backend: Backend, a: Ciphertext[Any], b: Ciphertext[Any], values: Floats, repeats: int
) -> tuple[float, float, float]:
    """Return the seconds of both products, and of the rescale after them."""
    if a.level == 0:
        return 0.0, 0.0, 0.0
    product = backend.mul_plain(a, values)
    return (
        _least(lambda: backend.mul_plain(a, values), repeats),
        _least(lambda: backend.mul(a, b), repeats),
        _least(lambda: backend.rescale(product), repeats),
    )


def _least(operation: Callable[[], object], repeats: int) -> float:
    """Return the least seconds of several repeats, after one to warm up the memory.

    Only this thread's time counts, whatever else the host does. Slow operations are repeated less.
    """
    operation()
    seconds = list[float]()
    while len(seconds) < repeats and sum(seconds) < ENOUGH:
        start = thread_time()
        operation()
        seconds.append(thread_time() - start)
    return min(seconds)


def _row(measured: Mapping[int, Sequence[float]], at: int, depth: int) -> tuple[float, ...]:
    """Return one operation's seconds by level, interpolated between the measured levels."""
    known = sorted(measured)
    line = np.interp(range(depth + 1), known, [measured[level][at] for level in known])
    return tuple(map(float, line))

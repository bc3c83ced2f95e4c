"""`python -m benchmarks.ckks_layer NAME full|tiny WORKERS`: one layer on ciphertexts.

It prints one JSON object; it is a process of its own because its memory is measured.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from weft.ckks.backends import Seal
from weft.ckks.bsgs import split
from weft.ckks.linear import LinearMap, linear
from weft.ckks.lower import lower
from weft.ckks.packing import Floats, Packing
from weft.ckks.parallel import execute_parallel
from weft.ckks.parameters import Parameters
from weft.ckks.slot_program import SlotProgram
from weft.lang import ops, trace

STATUS = Path("/proc/self/status")
FULL, TINY = Parameters(1 << 16, 1, 45, 55), Parameters(1 << 11, 1, 45, 55, security=None)
"""At depth 1 the large ring has 160 bits of 1,747 that 128-bit security allows."""


class ConvolutionLayer(NamedTuple):
    """A convolution of a square image, padded so that no output pixel is lost."""

    channels: int
    features: int
    kernel: int
    size: int
    stride: int = 1

    @property
    def result_size(self) -> int:
        """The side of the result."""
        return -(-self.size // self.stride)

    def packings(self, slots: int) -> tuple[Packing, Packing]:
        """Return tiles padded to powers of two; phases for the input of a strided layer."""
        shape = (1, self.channels, self.size, self.size)
        source = Packing.tiled(shape, slots)
        if self.stride > 1:
            source = Packing.phased(shape, slots, self.stride)
        return source, Packing.tiled((1, self.features, self.result_size, self.result_size), slots)

    def map(self, slots: int) -> LinearMap:
        """Return its diagonals."""
        image = (1, self.channels, self.size, self.size)
        weight = (self.features, self.channels, self.kernel, self.kernel)
        steps, edges = (self.stride,) * 2, (self.kernel // 2,) * 2
        graph = trace(lambda x, w: ops.convolve(x, w, steps, edges), image, weight)
        ((_, line),) = graph.walk()
        return linear(line, *self.packings(slots), weight=1)

    def answer(self, image: Floats, weight: Floats) -> Floats:
        """Return the result by NumPy, tap by tap."""
        edge, reach = self.kernel // 2, self.stride * (self.result_size - 1) + 1
        padded = np.pad(image[0], ((0, 0), (edge, edge), (edge, edge)))
        total = np.zeros((self.features, self.result_size, self.result_size))
        for u, v in np.ndindex(self.kernel, self.kernel):
            seen = padded[:, u : u + reach : self.stride, v : v + reach : self.stride]
            total += np.tensordot(weight[:, :, u, v], seen, axes=1)
        return total[None]


LAYERS = {
    "2048-512-1x1-7": ConvolutionLayer(2048, 512, 1, 7),
    "64-64-3x3-56": ConvolutionLayer(64, 64, 3, 56),
    "512-512-3x3-7": ConvolutionLayer(512, 512, 3, 7),
    "3-64-7x7-s2-224": ConvolutionLayer(3, 64, 7, 224, 2),
}
SMALL = {
    "2048-512-1x1-7": ConvolutionLayer(64, 16, 1, 7),
    "64-64-3x3-56": ConvolutionLayer(2, 2, 3, 24),
    "512-512-3x3-7": ConvolutionLayer(16, 16, 3, 7),
    "3-64-7x7-s2-224": ConvolutionLayer(3, 2, 7, 32, 2),
}


def measure(layer: ConvolutionLayer, parameters: Parameters, workers: int) -> dict[str, float]:
    """Plan, make keys, encrypt, run, decrypt, compare."""
    begin, rng = time.process_time(), np.random.default_rng(0)
    linear_map = layer.map(parameters.slots)
    diagonal_split = split(linear_map)
    planned = time.process_time() - begin
    weight = rng.normal(size=linear_map.parts[0].weight) / (layer.channels * layer.kernel**2) ** 0.5
    image = rng.normal(size=linear_map.sources[0].shape)
    backend = Seal(parameters, diagonal_split.keys, relinearise=False)
    program, answer = lower(linear_map, diagonal_split, [weight]), layer.answer(image, weight)
    error, wall, busiest = _run(linear_map, program, backend, image, answer, workers)
    counted = backend.counters
    return {
        "rotations": counted.rotations,
        "products": counted.plain_products,
        "keys": len(backend.rotations),
        "inputs": linear_map.inputs,
        "outputs": linear_map.outputs,
        "error": error,
        "plan_s": planned,
        "run_s": wall,
        "busiest_cpu_s": busiest,
        "cpu_s": time.process_time() + forks() - begin,
        "MiB": peak(),
    }


def _run(
    linear_map: LinearMap,
    program: SlotProgram,
    backend: Seal,
    image: Floats,
    answer: Floats,
    workers: int,
) -> tuple[float, float, float]:
    """Return the largest error, the wall-clock seconds, the busiest process's CPU seconds."""
    given = [backend.encrypt(row) for row in linear_map.sources[0].pack(image)]
    begin, start = time.perf_counter(), time.process_time()
    made = execute_parallel(program, backend, given, workers)
    wall = time.perf_counter() - begin
    busiest = max(time.process_time() - start, forks())
    got = linear_map.target.unpack([backend.decrypt(each) for each in made])
    return float(np.abs(got - answer).max()), wall, busiest


def forks() -> float:
    """Return the CPU seconds of the forks of this process (one fork with two workers)."""
    taken = resource.getrusage(resource.RUSAGE_CHILDREN)
    return taken.ru_utime + taken.ru_stime


def peak() -> float:
    """Return the peak memory of this process in MiB."""
    if STATUS.exists():
        for line in STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    is_full = sys.argv[2] == "full"
    chosen = (LAYERS if is_full else SMALL)[sys.argv[1]]
    print(json.dumps(measure(chosen, FULL if is_full else TINY, int(sys.argv[3]))))

"""Programs on several processes: the same values, the same counts, and nothing left behind."""

import os
import signal
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ckks.cases import cases
from tests.ckks.layers import conv_signature
from tests.trials import trials

from weft.ckks.activations import fit
from weft.ckks.backends import Seal, Simulator
from weft.ckks.bsgs import split
from weft.ckks.linear import linear
from weft.ckks.lower import lower, lower_polynomial
from weft.ckks.packing import Packing
from weft.ckks.parallel import execute_parallel
from weft.ckks.parameters import Parameters
from weft.ckks.partition import Receive, Send, partition, worker_reads
from weft.ckks.polynomial import evaluate
from weft.ckks.slot_program import SlotProgramBuilder
from weft.errors import WeftError

SMALL = Parameters(4096, 1, security=None)
FORKED = trials(15)
"""The number of programs that are run by forks."""


def layer(channels=8, size=32, features=8, keys=None):
    """A convolution of several ciphertexts in a ring of 4096."""
    source = Packing.tiled((1, channels, size, size), SMALL.slots)
    target = Packing.tiled((1, features, size, size), SMALL.slots)
    kernel = (features, channels, 3, 3)
    line = conv_signature((1, channels, size, size), kernel, padding=(1, 1, 1, 1))
    found = linear(line, source, target, weight=1)
    diagonal_split = split(found, keys)
    weight = np.random.default_rng(0).normal(size=kernel)
    return lower(found, diagonal_split, [weight]), diagonal_split.keys


def encrypted(backend, count):
    rng = np.random.default_rng(1)
    return [backend.encrypt(rng.normal(size=backend.parameters.slots)) for _ in range(count)]


def both(program, backend, workers):
    """The values and the counts of one process, and of several."""
    ciphertexts = encrypted(backend, program.inputs)
    found = []
    for number in (1, workers):
        before = backend.counters.copy()
        made = execute_parallel(program, backend, ciphertexts, number)
        found.append((made, backend.counters - before))
    (one, first), (two, second) = found
    assert first == second
    assert [each.level for each in one] == [each.level for each in two]
    assert [each.scale for each in one] == [each.scale for each in two]
    return [[backend.decrypt(each) for each in made] for made in (one, two)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("keys", [None, 4])
@pytest.mark.parametrize("shape", [(8, 32, 8), (2, 16, 2), (8, 32, 2), (1, 32, 8)])
def test_ciphertexts_are_the_same_to_the_bit(shape, keys, workers):
    program, rotations = layer(*shape, keys)
    backend = Seal(SMALL, rotations, relinearise=False)
    one, two = both(program, backend, workers)
    assert np.array_equal(one, two)


def test_polynomials_are_divided_by_ciphertexts():
    parameters = Parameters(4096, 4, security=None)
    program = lower_polynomial(evaluate(fit("relu", 7, -5, 5)), parameters, 4, 4)
    workers = partition(program, 2).instructions
    assert abs(len(workers[0]) - len(workers[1])) <= 4
    assert sum(isinstance(one, Send) for each in workers for one in each) == 2  # two results
    one, two = both(program, Seal(parameters), 2)
    assert np.array_equal(one, two)


def test_baby_steps_are_not_sent():
    program, _ = layer()
    workers = partition(program, 2).instructions
    products = [
        sum(getattr(one, "operation", "") == "mul_plain" for one in each) for each in workers
    ]
    assert max(products) < 0.6 * sum(products)
    babies = {
        step.out
        for step in program.instructions
        if step.operation == "rotate" and step.operands[0] < program.inputs
    }
    sent = {one.a for each in workers for one in each if isinstance(one, Send)}
    assert babies
    assert not sent & babies


@given(cases(sizes=(64, 256, 1024)), st.integers(2, 5))
def test_all_instructions_run_once_and_no_worker_waits_forever(case, workers):
    divided = partition(case.program, workers)
    run = [one for each in divided.instructions for one in each]
    run = [one for one in run if not isinstance(one, Send | Receive)]
    kinds = Counter(one.operation for one in run)
    assert kinds == Counter(one.operation for one in case.program.instructions)
    known = [set(range(case.program.inputs)) for _ in range(workers)]
    pending, sent = [list(each) for each in divided.instructions], set()
    while any(pending):
        progressed = False
        for worker, left in enumerate(pending):
            while left and not (isinstance(left[0], Receive) and (left[0].out, worker) not in sent):
                instruction = left.pop(0)
                assert set(worker_reads(instruction)) <= known[worker]
                if isinstance(instruction, Send):
                    sent.add((instruction.a, instruction.to))
                else:
                    known[worker].add(instruction.out)
                progressed = True
        assert progressed
    assert set(divided.outputs) <= known[0]


@settings(max_examples=FORKED)
@given(cases(sizes=(64, 256, 1024)), st.integers(2, 3))
def test_any_program_by_forks(case, workers):
    backend = Simulator(case.parameters, case.cost.keys)
    given_ = [backend.encrypt(row, level) for row, level in zip(case.rows, case.levels)]
    before = backend.counters.copy()
    made = execute_parallel(case.program, backend, given_, workers)
    counters = backend.counters - before
    assert counters == case.cost
    found = np.array([backend.decrypt(each) for each in made])
    assert np.abs(found - case.answer).max() < 1e-10


class Broken:
    """A plaintext that cannot be made."""

    def __init__(self, error):
        self.error = error

    def values(self):
        raise self.error


def turned(plains):
    """As many rotations of one ciphertext as there are plaintexts, each multiplied by one."""
    builder = SlotProgramBuilder(1)
    rotations = [builder.rotate(0, 1 + n) for n in range(len(plains))]
    return builder.program([builder.mul_plain(a, plain) for a, plain in zip(rotations, plains)])


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("place", [0, 3])
def test_an_error_of_a_worker_is_raised_here(place, workers):
    ones = [Whole() for _ in range(4)]
    ones[place] = Broken(WeftError("no such weight", hint="give one"))
    backend, before = Simulator(SMALL), children()
    with pytest.raises(WeftError, match="no such weight") as caught:
        execute_parallel(turned(ones), backend, encrypted(backend, 1), workers)
    assert caught.value.__notes__ == ["hint: give one"]
    assert children() == before


class Whole:
    def values(self):
        return np.ones(SMALL.slots)


class StubbornError(Exception):
    """An error that cannot be sent."""

    def __reduce__(self):
        raise TypeError


def test_an_error_that_cannot_be_sent_becomes_text():
    backend = Simulator(SMALL)
    with pytest.raises(WeftError, match=r"in a worker: StubbornError\('why'\)"):
        execute_parallel(
            turned([Whole(), Broken(StubbornError("why"))]), backend, encrypted(backend, 1), 2
        )


class Deadly:
    def __init__(self, parent):
        self.parent = parent

    def values(self):
        if os.getpid() != self.parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.ones(SMALL.slots)


def test_a_worker_that_is_killed_is_missed():
    backend, before = Simulator(SMALL), children()
    program = turned([Deadly(os.getpid()) for _ in range(4)])
    with pytest.raises(WeftError, match="worker 1 was killed"):
        execute_parallel(program, backend, encrypted(backend, 1), 2)
    assert children() == before


def children():
    """The processes that this one started and did not wait for, by what the system says."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()


def open_files():
    """The files that are open, by their numbers and what they are."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the list itself
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


def shared_memory():
    """Shared memory with a name that Python gives; other processes come and go with their own."""
    return {path for path in Path("/dev/shm").iterdir() if path.name.startswith(("psm_", "weft"))}


def test_no_files_or_processes_are_left_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    files, shared = open_files(), shared_memory()
    before = children()
    program, rotations = layer(8, 32, 2)
    backend = Seal(SMALL, rotations, relinearise=False)
    execute_parallel(program, backend, encrypted(backend, program.inputs), 3)
    assert open_files() - files == set()  # what others had open may be closed meanwhile
    assert shared_memory() - shared == set()
    assert list(tmp_path.iterdir()) == []
    assert children() == before


def test_threads_of_other_libraries_do_not_matter():
    """JAX warns of forks, since its own threads are not in them; nothing here needs those."""
    import jax.numpy as jnp

    assert jnp.ones(4).sum() == 4
    program, _ = layer(2, 16, 2)
    one, two = both(program, Simulator(SMALL), 2)
    assert np.abs(np.subtract(one, two)).max() < 1e-10


def test_workers_make_zeros_without_an_encryptor():
    """SEAL refuses a product with zeros; the zeros that came with the keys take its place."""
    backend = Seal(SMALL, [1, 2, 3, 4], relinearise=False)
    inputs = encrypted(backend, 1)
    backend._encryptor = None
    made = execute_parallel(turned([Nothing() for _ in range(4)]), backend, inputs, 2)
    assert all(np.abs(backend.decrypt(each)).max() < 1e-6 for each in made)


class Nothing:
    def values(self):
        return np.zeros(SMALL.slots)


def test_refusals(monkeypatch):
    program, backend = turned([Whole(), Whole()]), Simulator(SMALL)
    with pytest.raises(WeftError, match="a program needs at least 1 worker"):
        execute_parallel(program, backend, encrypted(backend, 1), 0)
    with pytest.raises(WeftError, match="a program of 1 ciphertext is given 2"):
        execute_parallel(program, backend, encrypted(backend, 2), 2)
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(
        WeftError, match="need forks and files in memory, which darwin does not have"
    ):
        execute_parallel(program, backend, encrypted(backend, 1), 2)

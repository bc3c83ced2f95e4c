"""Programs on several processes: SEAL has one core of each.

The processes are forks of this one, so that they share its keys, which are never sent. What goes
between them are ciphertexts, in memory.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import warnings
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from weft.ckks.backend import Cipher
from weft.ckks.links import Done, Links, Portable
from weft.ckks.program import Program, check_inputs, run_step
from weft.ckks.program import execute as execute_here
from weft.ckks.shares import Receive, Send, Shares, freed, share
from weft.errors import WeftError
from weft.values import as_count


def execute(
    program: Program, backend: Portable, inputs: Sequence[Cipher[Any]], workers: int = 1
) -> list[Cipher[Any]]:
    """Run a program on a backend by so many processes, this one among them.

    Values and counters are the same, however many there are. An error of any is raised here.

    >>> from weft.ckks.parameters import Parameters
    >>> from weft.ckks.program import Add, Rotate
    >>> from weft.ckks.simulator import Simulator
    >>> sums = Program(2, (4,), lambda: [Rotate(2, 0, 1), Rotate(3, 1, 2), Add(4, 2, 3)])
    >>> backend = Simulator(Parameters(16, 1, security=None))
    >>> given = [backend.encrypt(range(8)) for _ in range(2)]
    >>> (made,) = execute(sums, backend, given, workers=2)
    >>> backend.decrypt(made).tolist(), backend.counters.rotations
    ([3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 7.0, 1.0], 2)
    """
    if not as_count(workers, "workers"):
        raise WeftError("a program needs at least 1 worker")
    check_inputs(program, inputs)
    shares = share(program, workers) if workers > 1 else None
    if shares is None or not any(shares.acts[1:]):
        return execute_here(program, backend, inputs)
    _check_system()
    return _Run(shares, backend, inputs).start()


def _check_system() -> None:
    if sys.platform != "linux":
        raise WeftError(
            f"several workers need forks and files in memory, which {sys.platform} has not",
            hint="workers=1",
        )


class _Run:
    """One run of a divided program: this process is worker 0."""

    def __init__(self, shares: Shares, backend: Portable, inputs: Sequence[Cipher[Any]]) -> None:
        self.shares, self.backend, self.inputs = shares, backend, inputs
        self.workers = [n for n, acts in enumerate(shares.acts) if acts or n == 0]
        """Those that have something to do."""

    def start(self) -> list[Cipher[Any]]:
        """Fork the others, do this one's part, and collect what they counted."""
        ends = _connected(self.workers)
        children = dict[int, int]()
        try:
            for worker in self.workers[1:]:
                children[worker] = _fork()
                if not children[worker]:
                    self._child(worker, ends)
            links = Links(self.backend, _kept(ends, 0))
            registers = self._work(0, links)
            for worker in self.workers[1:]:
                self.backend.counters.include(links.finish(worker))
            return [registers[out] for out in self.shares.outputs]
        except BaseException:
            for child in children.values():
                os.kill(child, signal.SIGKILL)
            raise
        finally:
            for child in children.values():
                os.waitpid(child, 0)
            for end in ends.get(0, {}).values():
                end.close()

    def _child(self, worker: int, ends: dict[int, dict[int, socket.socket]]) -> None:
        """What a fork does: it never comes back from here."""
        status = 1
        try:
            before = self.backend.counters.copy()
            links = Links(self.backend, _kept(ends, worker))
            error: BaseException | None = None
            try:
                self._work(worker, links)
            except BaseException as caught:
                error = caught
            links.close(Done(self.backend.counters - before, error))
            status = 0
        finally:
            os._exit(status)

    def _work(self, worker: int, links: Links) -> dict[int, Cipher[Any]]:
        """Do the acts of a worker; what is left are its outputs."""
        registers = dict(enumerate(self.inputs))
        outputs = self.shares.outputs if worker == 0 else ()
        for act, over in freed(self.shares.acts[worker], outputs):
            if isinstance(act, Send):
                links.send(act.a, registers[act.a], act.to)
            elif isinstance(act, Receive):
                registers[act.out] = links.receive(act.out, act.source)
            else:
                registers[act.out] = run_step(act, self.backend, registers)
            for register in over:
                del registers[register]
        return registers


def _connected(workers: Sequence[int]) -> dict[int, dict[int, socket.socket]]:
    """For each worker its ends of the sockets to all others."""
    ends: dict[int, dict[int, socket.socket]] = {worker: {} for worker in workers}
    for one, two in combinations(workers, 2):
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ends[one][two], ends[two][one] = pair
    return ends


def _kept(ends: dict[int, dict[int, socket.socket]], worker: int) -> dict[int, socket.socket]:
    """The ends of a worker; those of others are closed here, so that theirs alone are left."""
    for other in [other for other in ends if other != worker]:
        for end in ends.pop(other).values():
            end.close()
    return ends[worker]


def _fork() -> int:
    with warnings.catch_warnings():
        # Python and JAX warn where there are threads: a fork here runs SEAL and NumPy, on its own.
        warnings.simplefilter("ignore")
        return os.fork()

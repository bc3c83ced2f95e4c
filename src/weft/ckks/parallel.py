"""Run slot programs on several processes: SEAL uses one core of each.

The processes are forks of this one, so that they share its keys, which are never sent. Only
ciphertexts are sent, as files in memory whose descriptors go through sockets.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import struct
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import combinations
from typing import Any, NamedTuple

from weft.ckks.backends import Backend, Ciphertext
from weft.ckks.partition import Partition, Receive, Send, partition, worker_reads
from weft.ckks.slot_program import OperationCounts, SlotProgram, check_inputs, execute, last_uses
from weft.errors import WeftError
from weft.values import as_count

HEADER = struct.Struct("qqd")
"""The register, the level and the scale of a ciphertext."""
LONGEST = 1 << 17
"""The longest message: the counters of a worker, or its error."""


def execute_parallel(
    program: SlotProgram, backend: Backend, inputs: Sequence[Ciphertext[Any]], workers: int = 1
) -> list[Ciphertext[Any]]:
    """Run a program on a back-end with several processes, this one included.

    Results and counters do not depend on their number. An error in any of them is raised here.

    >>> from weft.ckks.backends import Simulator
    >>> from weft.ckks.parameters import Parameters
    >>> from weft.ckks.slot_program import SlotProgramBuilder
    >>> builder = SlotProgramBuilder(inputs=2)
    >>> sums = builder.program([builder.add(builder.rotate(0, 1), builder.rotate(1, 2))])
    >>> backend = Simulator(Parameters(16, 1, security=None))
    >>> given = [backend.encrypt(range(8)) for _ in range(2)]
    >>> (result,) = execute_parallel(sums, backend, given, workers=2)
    >>> backend.decrypt(result).tolist(), backend.counters.rotations
    ([3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 7.0, 1.0], 2)
    """
    if not as_count(workers, "workers"):
        raise WeftError("a program needs at least 1 worker")
    check_inputs(program, inputs)
    divided = partition(program, workers) if workers > 1 else None
    if divided is None or not any(divided.instructions[1:]):
        return execute(program, backend, inputs)
    if sys.platform != "linux":
        raise WeftError(
            f"several workers need forks and files in memory, which {sys.platform} does not have",
            hint="workers=1",
        )
    return _ForkedRun(divided, backend, inputs).start()


class _ForkedRun:
    """One run of a partitioned program; this process is worker 0."""

    def __init__(
        self, divided: Partition, backend: Backend, inputs: Sequence[Ciphertext[Any]]
    ) -> None:
        self.divided, self.backend, self.inputs = divided, backend, inputs
        self.workers = [n for n, each in enumerate(divided.instructions) if each or n == 0]
        """The workers that have instructions."""

    def start(self) -> list[Ciphertext[Any]]:
        """Fork the others, run this worker's instructions, and collect the counters."""
        ends = _connected(self.workers)
        children = dict[int, int]()
        try:
            for worker in self.workers[1:]:
                children[worker] = _fork()
                if not children[worker]:
                    self._child(worker, ends)
            channels = IpcChannels(self.backend, _keep(ends, 0))
            registers = self._run(0, channels)
            for worker in self.workers[1:]:
                total = self.backend.counters + channels.finish(worker)
                self.backend.counters = total
            return [registers[out] for out in self.divided.outputs]
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
        """Run a forked worker; never returns."""
        status = 1
        try:
            before = self.backend.counters.copy()
            channels = IpcChannels(self.backend, _keep(ends, worker))
            error: BaseException | None = None
            try:
                self._run(worker, channels)
            except BaseException as caught:
                error = caught
            channels.close(WorkerResult(self.backend.counters - before, error))
            status = 0
        finally:
            os._exit(status)

    def _run(self, worker: int, channels: IpcChannels) -> dict[int, Ciphertext[Any]]:
        """Run the instructions of a worker; return the registers that are left, its outputs."""
        registers = dict(enumerate(self.inputs))
        instructions = self.divided.instructions[worker]
        outputs = self.divided.outputs if worker == 0 else ()
        released = last_uses(map(worker_reads, instructions), outputs)
        for instruction, ended in zip(instructions, released):
            if isinstance(instruction, Send):
                channels.send(instruction.a, registers[instruction.a], instruction.to)
            elif isinstance(instruction, Receive):
                registers[instruction.out] = channels.receive(instruction.out, instruction.source)
            else:
                registers[instruction.out] = instruction.apply(self.backend, registers)
            for register in ended:
                del registers[register]
        return registers


def _connected(workers: Sequence[int]) -> dict[int, dict[int, socket.socket]]:
    """Return for each worker its ends of the sockets to all others."""
    ends: dict[int, dict[int, socket.socket]] = {worker: {} for worker in workers}
    for one, two in combinations(workers, 2):
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ends[one][two], ends[two][one] = pair
    return ends


def _keep(ends: dict[int, dict[int, socket.socket]], worker: int) -> dict[int, socket.socket]:
    """Return the ends of a worker; close those of others in this process."""
    for other in [other for other in ends if other != worker]:
        for end in ends.pop(other).values():
            end.close()
    return ends[worker]


def _fork() -> int:
    with warnings.catch_warnings():
        # Python and JAX warn of forks with threads: a fork here only runs SEAL and NumPy.
        warnings.simplefilter("ignore")
        return os.fork()


# -- ciphertexts between processes ----------------------------------------------------------------


class WorkerResult(NamedTuple):
    """The last message of a worker: its counters, or its error."""

    counters: OperationCounts
    error: BaseException | None = None


class IpcChannels:
    """A socket to each of the other workers, and the ciphertexts that arrived.

    Files in memory have no directory entry. They vanish when the last process closes them, however
    it ends.
    """

    def __init__(self, backend: Backend, sockets: dict[int, socket.socket]) -> None:
        self.backend, self.sockets = backend, sockets
        self.workers = {each: worker for worker, each in sockets.items()}
        self.inbox: dict[int, Ciphertext[Any]] = {}
        self.results: dict[int, WorkerResult] = {}
        for each in sockets.values():
            each.setblocking(False)

    def send(self, register: int, ciphertext: Ciphertext[Any], to: int) -> None:
        """Send a ciphertext; take arriving ones meanwhile, so that workers never deadlock."""
        header = HEADER.pack(register, ciphertext.level, ciphertext.scale)
        with _memory_file() as (file, path):
            self.backend.write(ciphertext, path)
            try:
                self._push(to, header, [file])
            except (BrokenPipeError, ConnectionResetError):
                while True:  # the reason is the worker's last message, and is raised
                    self._take(self.sockets[to])

    def receive(self, register: int, source: int) -> Ciphertext[Any]:
        """Wait for a ciphertext."""
        while register not in self.inbox:
            if source in self.results:
                raise WeftError(f"worker {source} ended before it sent register {register}")
            self._wait()
        return self.inbox.pop(register)

    def close(self, result: WorkerResult) -> None:
        """Send the last message, the counters or the error, to all others."""
        message = _encoded(result)
        for worker in self.sockets.keys() - self.results.keys():
            with suppress(BrokenPipeError, ConnectionResetError):
                self._push(worker, message)

    def finish(self, worker: int) -> OperationCounts:
        """Wait for the last message of a worker; return its counters."""
        while worker not in self.results:
            self._wait()
        return self.results[worker].counters

    def _push(self, to: int, message: bytes, files: Sequence[int] = ()) -> None:
        end = self.sockets[to]
        while True:
            try:
                socket.send_fds(end, [message], files)
                return
            except BlockingIOError:
                self._wait(end)

    def _wait(self, full: socket.socket | None = None) -> None:
        """Wait until a message arrives, or a full socket has room; take what arrived."""
        open_ = [each for worker, each in self.sockets.items() if worker not in self.results]
        ready, _, _ = select.select(open_, [full] if full else [], [])
        for each in ready:
            self._take(each)

    def _take(self, end: socket.socket) -> None:
        try:
            message, files, _, _ = socket.recv_fds(end, LONGEST, 1)
        except ConnectionResetError:
            message, files = b"", []
        worker = self.workers[end]
        if not files:
            self._take_result(worker, message)
            return
        register, level, scale = HEADER.unpack(message)
        try:
            self.inbox[register] = self.backend.read(_path(files[0]), level, scale)
        finally:
            os.close(files[0])

    def _take_result(self, worker: int, message: bytes) -> None:
        killed = WeftError(f"worker {worker} was killed", hint="is there enough memory?")
        # The message comes from a fork of this process: pickle is safe here.
        result = pickle.loads(message) if message else WorkerResult(OperationCounts(), killed)
        self.results[worker] = result
        if result.error is not None:
            raise result.error


def _encoded(result: WorkerResult) -> bytes:
    """Return a last message that is short enough; an error that cannot be sent becomes text."""
    with suppress(Exception):  # an error of any library may hold anything
        message = pickle.dumps(result)
        if len(message) <= LONGEST and pickle.loads(message):
            return message
    return pickle.dumps(result._replace(error=WeftError(f"in a worker: {result.error!r:.1000}")))


@contextmanager
def _memory_file() -> Iterator[tuple[int, str]]:
    """Open a file in memory; give its descriptor and its path in this process."""
    file = os.memfd_create("weft")
    try:
        yield file, _path(file)
    finally:
        os.close(file)


def _path(file: int) -> str:
    return f"/proc/self/fd/{file}"

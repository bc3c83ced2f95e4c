"""A harness for fuzzing readers: hostile inputs in, an answer or a `WeftError` out, within limits.

A test module describes what it fuzzes and hands over its name:

    GRAPHS = Reader(documents, read, mutate_json)

    def test_hostile_graphs_are_read_or_refused():
        fuzz("tests.lang.test_fuzz:GRAPHS")

Each input runs in a child process. `ITIMER_PROF` counts the CPU time of that process alone and the
kernel ends it at the limit, so a busy machine changes nothing and a loop in C cannot hang the
suite. Memory is the growth of the resident set while an input is read; RLIMIT_AS stops the child
before it can hurt the machine. Input `n` depends on `n` alone: to read one again,

    python -m tests.fuzzing tests.lang.test_fuzz:GRAPHS 4711
"""

from __future__ import annotations

import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from random import Random
from time import process_time
from typing import IO

from tests.mutations import mutate_bytes
from tests.trials import trials

from weft.errors import WeftError

SECONDS = 5.0
"""CPU seconds that one input may take."""
BYTES = 500 * 10**6
"""Bytes by which the resident set may grow for one input."""
ADDRESS_SPACE = 4 << 30
"""Bytes of address space beyond which the child gets a MemoryError."""
SILENCE = 900
"""Seconds of wall-clock time without any sign of the child after which it is given up."""
ROOT = Path(__file__).parent.parent


def input_count() -> int:
    """Inputs per reader: 30 in `make test`, 300 in `make test-all`, 10,000 in `make fuzz`."""
    return trials(300)


@dataclass(frozen=True)
class Reader:
    """A reader and where its hostile inputs come from."""

    documents: Callable[[], Sequence[bytes]]
    """Valid documents: all of them must be read."""
    read: Callable[[bytes], object]
    """Reads an input, and checks the answer if there is a way to (an assertion is an escape)."""
    mutate: Callable[[Random, Sequence[bytes]], bytes] = mutate_bytes
    hostile: Callable[[], Sequence[bytes]] = tuple
    """Inputs that are tried before any random one."""
    seconds: float = SECONDS


@dataclass
class Report:
    """The outcomes of the inputs."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    """The most CPU seconds of one input."""
    grown: int = 0
    """The most bytes by which memory grew for one input."""

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(self.counts.items()))
        return f"{counts}; at most {self.seconds:.2f} s and {self.grown / 1e6:.0f} MB"


ALLOWED = ("read", "refused")


def fuzz(name: str, count: int | None = None) -> Report:
    """Run `count` inputs of the reader `module:name`; fail unless all are read or refused."""
    count = input_count() if count is None else count
    report, start = Report(), 0
    while start < count and len(report.failures) < 20:
        start = _run_child(name, start, count, report)
    print(f"{name}: {report}")
    assert not report.failures, f"{report}\n" + "\n".join(report.failures)
    assert report.counts["read"] + report.counts["refused"] == count
    return report


def _run_child(name: str, start: int, stop: int, report: Report) -> int:
    """Run inputs in one child until all are done or one ends it; return the next to run."""
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzzing", name, str(start), str(stop)],
            cwd=ROOT,
            env={**os.environ, "MALLOC_ARENA_MAX": "2"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        assert child.stdout is not None
        try:
            number = start - 1
            for line in _lines(child.stdout):
                match json.loads(line):
                    case ["begin", int(number)]:
                        pass
                    case ["end", verdict, about, seconds, grown]:
                        report.counts[verdict] += 1
                        report.seconds = max(report.seconds, seconds)
                        report.grown = max(report.grown, grown)
                        if verdict not in ALLOWED:
                            report.failures.append(f"input {number}: {verdict}: {about}")
                    case ["done"]:
                        return stop
            code = child.wait()
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
        errors.seek(0)
        last = errors.read()[-2000:].decode(errors="replace")
    if number < start:
        raise AssertionError(f"{name} could not be fuzzed (exit {code}):\n{last}")
    verdict = "too slow" if code == -signal.SIGPROF else "crash"
    if code == 3:  # the child has told that memory grew too far, and begins anew
        return number + 1
    report.counts[verdict] += 1
    report.failures.append(f"input {number}: {verdict} (exit {code}) {last[-300:]}")
    return number + 1


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    """The lines of a child as they come."""
    rest = b""
    while True:
        ready, _, _ = select.select([stream], [], [], SILENCE)
        if not ready:
            raise AssertionError(f"the child has been silent for {SILENCE} s")
        data = os.read(stream.fileno(), 1 << 16)
        *lines, rest = (rest + data).split(b"\n")
        yield from lines
        if not data:
            return


def _child(name: str, start: int, stop: int) -> None:
    """Read inputs, telling about each on the standard output that the parent gave."""
    tell = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what readers print goes nowhere
    reader = _reader(name)
    documents, hostile = list(reader.documents()), list(reader.hostile())
    for document in documents:
        reader.read(document)
    limit = _status("VmSize") + ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for number in range(start, stop):
        data = _input(reader, documents, hostile, number)
        before, begun = _begin_peak(), process_time()
        tell.write(json.dumps(["begin", number]) + "\n")
        signal.setitimer(signal.ITIMER_PROF, reader.seconds)
        verdict, about = _verdict(reader, data)
        signal.setitimer(signal.ITIMER_PROF, 0)
        seconds = process_time() - begun
        grown = max(0, _status("VmHWM") - before)
        if grown > BYTES and verdict in ALLOWED:
            verdict, about = f"over {BYTES // 10**6} MB", f"{grown} B, {about}"
        tell.write(json.dumps(["end", verdict, about, seconds, grown]) + "\n")
        if grown > BYTES:  # what it left behind is not the next one's
            tell.flush()
            os._exit(3)
    tell.write('["done"]\n')
    tell.flush()
    os._exit(0)


def _verdict(reader: Reader, data: bytes) -> tuple[str, str]:
    try:
        reader.read(data)
    except WeftError as error:
        about = str(error)
        return ("refused", about) if "bug of Weft" not in about else ("escape", about)
    except MemoryError:
        return "out of memory", repr(data[:200])
    except BaseException as error:
        return "escape", f"{type(error).__name__}: {str(error)[:300]} for {data[:200]!r}"
    return "read", ""


def _begin_peak() -> int:
    """Have the kernel count the peak of resident memory anew; return what is resident now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status("VmRSS")


def _status(key: str) -> int:
    """Bytes that the kernel counts for this process."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"^{key}:\s*([0-9]+) kB$", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def _reader(name: str) -> Reader:
    module, _, attribute = name.partition(":")
    reader = getattr(import_module(module), attribute)
    assert isinstance(reader, Reader)
    return reader


def _input(
    reader: Reader, documents: Sequence[bytes], hostile: Sequence[bytes], number: int
) -> bytes:
    """Input `number`: the same in any process."""
    if number < len(hostile):
        return hostile[number]
    return reader.mutate(Random(number), documents)


def main(arguments: Sequence[str]) -> None:
    """Run a child, or read one input again where one number is given."""
    name, start, *rest = arguments
    if rest:
        _child(name, int(start), int(rest[0]))
        return
    reader = _reader(name)
    data = _input(reader, list(reader.documents()), list(reader.hostile()), int(start))
    print(data[:4000].decode("utf-8", "replace"), flush=True)
    print(reader.read(data))


if __name__ == "__main__":  # this module is `__main__` here, and its classes are others
    import_module("tests.fuzzing").main(sys.argv[1:])

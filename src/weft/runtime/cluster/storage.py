"""`StorageBindings`: the inputs and outputs of a run that lie in storage."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft.plan import Plan
from weft.plan.chunking import Chunking, choose_storage
from weft.program.storage import Storage
from weft.runtime.cluster.task_graph import TaskGraph
from weft.runtime.cluster.tasks import TaskOutput
from weft.runtime.execute import check_array, is_stored

SHARDS_PER_WORKER = 16
"""A shard whose size is left to the plan is at most this fraction of the memory of a worker."""


@dataclass(frozen=True)
class Output:
    """Where and how an output is stored; the plan chooses what is not given.

    >>> Output("blurred.zarr", chunks=(64, 64, 64), shards=(256, 256, 256)).codecs
    'zstd'
    """

    url: str | PathLike[str]
    chunks: Iterable[int] | None = None
    shards: Iterable[int] | None = None
    codecs: Any = "zstd"
    overwrite: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    checksum: bool = True
    """Whether every chunk carries a CRC32C of its stored bytes."""


@dataclass(frozen=True)
class StorageBindings:
    """The arrays in storage that a run reads, and those that it writes."""

    plan: Plan
    inputs: Mapping[str, Any]
    outputs: dict[str, Any]
    new: set[str]
    """The outputs that this run creates."""

    @classmethod
    def of(
        cls,
        plan: Plan,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        *,
        locks: ExitStack,
        resume: bool = False,
        memory: int | None = None,
    ) -> StorageBindings:
        """Open the inputs and lock the outputs; with `resume`, open outputs that exist.

        Nothing is replaced before `create_outputs`. `locks` holds the locks of the outputs, so that
        nobody else writes them during the run. Chunks and shards that are left to the plan are
        small against the memory of a worker.
        """
        stored, sinks = check_places(plan, inputs, outputs)
        bindings = cls(plan, stored, {}, set())
        for name, output in outputs.items():
            lock = _lock(sinks[name], locks)
            writer = _open_writer(plan, name, sinks[name], lock) if resume else None
            if writer is None:
                writer = _new_writer(plan, name, _output(output), sinks[name], memory)
                bindings.new.add(name)
            bindings.outputs[name] = writer
        bindings.check_dtypes()
        return bindings

    def check_dtypes(self) -> None:
        """Refuse storage that holds another dtype or shape than the plan computes."""
        for name, array in (*self.inputs.items(), *self.outputs.items()):
            value = self.plan.graph.values.get(name)
            there = (tuple(array.shape), array.metadata.dtype)
            if value is not None and there != (value.shape, value.dtype):
                raise WeftError(
                    f"{array.sink.url} is {there[1]}{list(there[0])}, and {value} is declared"
                )

    def create_outputs(self, outputs: Mapping[str, Any]) -> None:
        """Create the outputs that do not exist; if that fails, remove those that were created."""
        create = import_module("weft.store.shard_writer").begin_shards
        created = []
        try:
            for name in self.new:
                create(self.outputs[name], overwrite=_output(outputs[name]).overwrite)
                created.append(self.outputs[name])
        except BaseException:
            for writer in created:
                writer.sink.delete("zarr.json")
            raise

    def task_graph(self, workers: int, memory: int | None) -> TaskGraph:
        """Return the tasks of the plan."""
        reading = [array.read_memory(threads=1) for array in self.inputs.values()]
        writing = [writer.write_memory() for writer in self.outputs.values()]
        return TaskGraph.of(
            self.plan,
            {name: self._storage(name, array) for name, array in self.inputs.items()},
            {name: self._storage(name, writer) for name, writer in self.outputs.items()},
            memory=memory,
            workers=workers,
            extra=max([*reading, *writing], default=0),
        )

    def _storage(self, name: str, array: Any) -> Storage:
        size = self.plan.itemsize(name)
        return Storage(array.shape, array.chunks, array.metadata.shards, size)

    def finish(self) -> None:
        """Remove the temporary files of workers that were killed; the run writes no more."""
        for name, writer in self.outputs.items():
            writer.sink.sweep()
            if writer.sink.fetch("zarr.json", 0, 1) is None:
                raise WeftError(f"output {name}: {writer.sink.url} went away during the run")

    def is_done(self, write: TaskOutput) -> bool:
        """Return whether the shards of a box are complete."""
        return bool(self.outputs[write.value].done(write.box))


def check_places(
    plan: Plan, inputs: Mapping[str, Any], outputs: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Open the inputs that are stored, and return them and the sinks of the outputs.

    Refuses names that the plan does not have, inputs that hold another dtype or shape than the plan
    declares, and outputs that lie where something else of the run does. Nothing is written.
    """
    for name in outputs:
        if name not in plan.graph.outputs:
            known = ", ".join(plan.graph.outputs) or "none"
            raise WeftError(f"there is no output {name}", hint=f"the outputs are {known}")
    stored = {name: _open(plan, name, x) for name, x in inputs.items() if is_stored(x)}
    sinks = {name: _sink(_output(output)) for name, output in outputs.items()}
    check_apart({name: array.sink for name, array in stored.items()}, sinks)
    return stored, sinks


def _output(given: Any) -> Output:
    if isinstance(given, Output):
        return given
    if isinstance(given, str | PathLike):
        return Output(given)
    raise WeftError(f"an output goes to a path, a URL or an Output, got {given!r}")


def _open(plan: Plan, name: str, given: Any) -> Any:
    open_array = import_module("weft.store.create").open_array
    array = open_array(given) if isinstance(given, str | PathLike) else given
    value = plan.graph.values.get(name)
    if value is not None:
        check_array(value, array.shape, array.metadata.dtype)
    if value is not None and plan.specs[name].partial:
        raise WeftError(f"a stored array is not partial: input {value} is {plan.specs[name]}")
    return array


def _sink(output: Output) -> Any:
    sink_of = import_module("weft.store.hierarchy").sink_of
    return sink_of(output.url, options=output.options or None)


def _lock(sink: Any, locks: ExitStack) -> Any:
    """Lock a sink until `locks` is closed; folders that are empty then are removed."""
    absent = sink.absent() if hasattr(sink, "absent") else []
    with import_module("weft.store.create").locked(sink) as lock:
        locks.callback(_release, lock, absent)
    return lock


def _release(lock: Any, absent: Sequence[Path]) -> None:
    lock.release()
    with suppress(OSError):  # a folder is not empty
        for folder in absent:
            folder.rmdir()


def check_apart(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    """Refuse an output at or inside the location of an input or of another output."""
    taken = [(_location(sink), f"input {name}") for name, sink in inputs.items()]
    for name, sink in outputs.items():
        place = _location(sink)
        for other, what in taken:
            if f"{place}/".startswith(f"{other}/") or f"{other}/".startswith(f"{place}/"):
                both = f"both are {sink.url}" if place == other else f"{place} and {other}"
                raise WeftError(
                    f"output {name} would replace {what}: {both}",
                    hint="write it elsewhere: a run reads its inputs while it writes",
                )
        taken.append((place, f"output {name}"))


def _location(sink: Any) -> str:
    """Return where a sink is, with links resolved."""
    path = getattr(sink, "path", None)
    return str(sink.url).rstrip("/") if path is None else os.path.realpath(path)


def _open_writer(plan: Plan, name: str, sink: Any, lock: Any) -> Any:
    """Return the writer of an array that exists; None if it does not."""
    if sink.fetch("zarr.json", 0, 1) is None:
        return None
    value = plan.graph.values[name]
    writer = import_module("weft.store").open_shards(sink, lock=lock)
    if (writer.shape, writer.metadata.dtype) != (value.shape, value.dtype):
        raise WeftError(
            f"{sink.url} is {writer.metadata.dtype}{list(writer.shape)}, and output {value} is to "
            "go on there"
        )
    return writer


def _chunking(itemsize: int, memory: int | None) -> Chunking:
    """Return limits for chunks and shards, so that a worker holds several of them at once."""
    if memory is None:
        return Chunking()
    whole, (low, high) = Chunking(), Chunking().chunk_bytes
    most = max(itemsize, min(whole.shard_bytes, memory // SHARDS_PER_WORKER))
    return Chunking((min(low, most), min(high, most)), shard_bytes=most)


def _new_writer(plan: Plan, name: str, output: Output, sink: Any, memory: int | None) -> Any:
    """Return the writer of an array that is yet to be created."""
    value, chunks, shards = plan.graph.values[name], output.chunks, output.shards
    if chunks is None:
        chosen = choose_storage(plan, name, _chunking(plan.itemsize(name), memory))
        chunks, shards = chosen.chunk, shards or chosen.shard
    return import_module("weft.store").create_shards(
        *(sink, value.shape, value.dtype, tuple(chunks)),
        None if shards is None else tuple(shards),
        codecs=output.codecs,
        checksum=output.checksum,
        overwrite=output.overwrite,
        begun=False,
    )

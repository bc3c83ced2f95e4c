"""`Places`: where the inputs and outputs of a run lie, if not in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from os import PathLike, fspath
from typing import Any

from weft.errors import WeftError
from weft.plan import Plan
from weft.plan.chunking import Chunking, choose_storage
from weft.plan.storage import Storage
from weft.run.execute import check_array, is_stored
from weft.run.grid.weaving.embedding import Embedding
from weft.run.grid.weaving.task import Made

SHARDS = 16
"""A shard whose size is left to the plan is at most this fraction of the memory of a worker."""


@dataclass(frozen=True)
class Output:
    """Where an output is stored, and how; what is not said is chosen by the plan.

    >>> Output("blurred.zarr", chunks=(64, 64, 64), shards=(256, 256, 256)).codecs
    'zstd'
    """

    url: str | PathLike[str]
    chunks: Iterable[int] | None = None
    shards: Iterable[int] | None = None
    codecs: Any = "zstd"
    overwrite: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Places:
    """The arrays in storage that a run reads, and those that it writes."""

    plan: Plan
    inputs: Mapping[str, Any]
    outputs: dict[str, Any]
    is_new: bool = True
    """Whether the outputs were made for this run."""

    @classmethod
    def of(
        cls,
        plan: Plan,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        *,
        resume: bool = False,
        memory: int | None = None,
    ) -> Places:
        """Open what is read and make what is written; with `resume`, what is there stays.

        Chunks and shards that are left to the plan are small beside the memory of a worker.
        """
        for name in outputs:
            if name not in plan.graph.outputs:
                known = ", ".join(plan.graph.outputs) or "none"
                raise WeftError(f"there is no output {name}", hint=f"the outputs are {known}")
        found = {name: _opened(plan, name, x) for name, x in inputs.items() if is_stored(x)}
        places = cls(plan, found, {}, is_new=not resume)
        with places.withdrawn():
            for name, said in outputs.items():
                places.outputs[name] = _made(plan, name, _output(said), resume, memory)
        return places

    @contextmanager
    def withdrawn(self) -> Iterator[None]:
        """If what is done meanwhile is refused, new outputs are gone: nothing is in them yet."""
        try:
            yield
        except WeftError:
            for writer in self.outputs.values() if self.is_new else ():
                writer.sink.delete("zarr.json")
            raise

    def embedding(self, workers: int, memory: int | None) -> Embedding:
        """The tasks of the plan."""
        reading = [array.read_memory(threads=1) for array in self.inputs.values()]
        writing = [writer.write_memory() for writer in self.outputs.values()]
        return Embedding.of(
            self.plan,
            {name: self._storage(name, array) for name, array in self.inputs.items()},
            {name: self._storage(name, writer) for name, writer in self.outputs.items()},
            memory=memory,
            workers=workers,
            extra=max([*reading, *writing], default=0),
        )

    def _storage(self, name: str, array: Any) -> Storage:
        size = self.plan.itemsize(name)
        return Storage(array.shape, array.chunks, array.shards, size)

    def settle(self) -> None:
        """Nobody writes any more: remove what workers that were killed left aside."""
        for name, writer in self.outputs.items():
            writer.sink.sweep()
            if writer.sink.fetch("zarr.json", 0, 1) is None:
                raise WeftError(f"output {name}: {writer.sink.url} went away during the run")

    def is_done(self, write: Made) -> bool:
        """Whether the shards of a box are there."""
        return bool(self.outputs[write.value].done(write.box))


def _output(given: Any) -> Output:
    if isinstance(given, Output):
        return given
    if isinstance(given, str | PathLike):
        return Output(given)
    raise WeftError(f"an output goes to a path, a URL or an Output, got {given!r}")


def _opened(plan: Plan, name: str, given: Any) -> Any:
    store = import_module("weft.store")
    array = store.open(given) if isinstance(given, str | PathLike) else given
    value = plan.graph.values.get(name)
    if value is not None:
        check_array(value, array.shape, array.metadata.dtype)
    if value is not None and plan.specs[name].partial:
        raise WeftError(f"a stored array is not partial: input {value} is {plan.specs[name]}")
    return array


def _there(store: Any, output: Output) -> Any:
    """The array that was begun, if it was."""
    options = output.options or None
    sink = import_module("weft.store.address").sink_of(output.url, options=options)
    return None if sink.fetch("zarr.json") is None else store.open_shards(sink)


def _chunking(itemsize: int, memory: int | None) -> Chunking:
    """Return what chunks and shards may be that a worker holds several of at once."""
    if memory is None:
        return Chunking()
    whole, (low, high) = Chunking(), Chunking().chunk_bytes
    most = max(itemsize, min(whole.shard_bytes, memory // SHARDS))
    return Chunking((min(low, most), min(high, most)), shard_bytes=most)


def _made(plan: Plan, name: str, output: Output, resume: bool, memory: int | None) -> Any:
    store, value = import_module("weft.store"), plan.graph.values[name]
    writer = _there(store, output) if resume else None
    if writer is not None:
        if (writer.shape, writer.metadata.dtype) != (value.shape, value.dtype):
            raise WeftError(
                f"{fspath(output.url)} is {writer.metadata.dtype}{list(writer.shape)}, and output "
                f"{value} is to go on there"
            )
        return writer
    chunks, shards = output.chunks, output.shards
    if chunks is None:
        chosen = choose_storage(plan, name, _chunking(plan.itemsize(name), memory))
        chunks, shards = chosen.chunk, shards or chosen.shard
    return store.create_shards(
        *(output.url, value.shape, value.dtype, tuple(chunks)),
        None if shards is None else tuple(shards),
        codecs=output.codecs,
        overwrite=output.overwrite,
        options=output.options or None,
    )

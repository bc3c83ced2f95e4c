"""A sink that keeps metadata only: what writing costs without the place where it is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from weft.store.dtypes import Bytes
from weft.store.sink import Fetched, StoreEntry


@dataclass
class Discard:
    """Shards go nowhere; small values are kept, so that it looks like a store."""

    url: str = "nowhere"
    buffered: int = 0
    values: dict[str, bytes] = field(default_factory=dict)
    discarded: int = 0

    def check_writable(self) -> None:
        """It can be written."""

    def lock(self) -> Discard:
        """Anybody may write."""
        return self

    def release(self) -> None:
        """Nothing is held."""

    def fetch(self, key: str, start: int = 0, count: int | None = None) -> Fetched | None:
        """What was put."""
        data = self.values.get(key)
        if data is None:
            return None
        return Fetched(data[start:] if count is None else data[start : start + count], len(data))

    def put(self, key: str, data: Bytes) -> None:
        """Kept."""
        self.values[key] = bytes(data)

    def upload(self, key: str, head: int) -> Nowhere:
        """A shard, which is not kept."""
        return Nowhere(self)

    def keys(self, prefix: str) -> Iterator[str]:
        """None."""
        return iter(())

    def walk(self, prefix: str) -> Iterator[StoreEntry]:
        """None."""
        return iter(())

    @property
    def is_link(self) -> bool:
        """There is no path."""
        return False

    def delete(self, key: str) -> None:
        """Nothing is there."""

    def remove(self, keys: Sequence[str]) -> None:
        """Nothing is there."""

    def sweep(self) -> None:
        """Nothing is left."""

    def folders(self) -> list[str]:
        """Return nothing: there is none."""
        return []

    def tuned(self, shard: int, count: int, direct: bool | None) -> Discard:
        """The same."""
        return self

    def below(self, name: str) -> Discard:
        """The same."""
        return self


@dataclass
class Nowhere:
    """A shard that is not kept."""

    sink: Discard

    def append(self, buffers: Sequence[Bytes]) -> None:
        """Only counted."""
        self.sink.discarded += sum(map(len, buffers))

    def publish(self, more: Sequence[Bytes], index: Bytes) -> bool:
        """Nobody sees it."""
        return False

    def finish(self, index: Bytes) -> None:
        """Gone."""

    def discard(self) -> None:
        """Gone."""

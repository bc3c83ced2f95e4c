"""`Encoder`: a tile to the bytes that are stored of it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from weft.store.codecs import Codec, Zstd, encode_pieces, stored_size
from weft.store.dtypes import Bytes, Pieces
from weft.store.metadata import Metadata


class Encoder:
    """What makes bytes of tiles; tiles that are all fill value have none."""

    def __init__(self, metadata: Metadata, dtype: np.dtype[Any]) -> None:
        self.metadata, self.dtype = metadata, dtype
        fill = np.asarray(metadata.fill, dtype).reshape(1)
        self._first = fill.tobytes()
        words = np.dtype(f"u{min(8, dtype.itemsize)}")  # compared many at a time, as others are not
        self._fill = fill.view(words)

    @property
    def most(self) -> int:
        """The bytes that a chunk may have at most: no codec adds more than that."""
        size = prod(self.metadata.chunks) * self.dtype.itemsize
        fixed = stored_size(self.metadata.codecs, size)
        return size + size // 128 + 1024 if fixed is None else fixed - size

    def encoded(self, tile: np.ndarray[Any, Any], codecs: Sequence[Codec]) -> Pieces | None:
        """The bytes of a chunk; None for one that is all fill value."""
        return None if self.is_fill(tile) else self.stored(tile, codecs)

    def stored(self, tile: np.ndarray[Any, Any], codecs: Sequence[Codec]) -> Pieces:
        """The bytes of a chunk, whatever is in it; uncompressed, they may be the tile's own."""
        return encode_pieces(codecs, self._plain(tile))

    def suited(self, tiles: Iterable[np.ndarray[Any, Any]]) -> tuple[Codec, ...]:
        """The codecs as they are quickest for the first of some tiles that is stored."""
        codecs = self.metadata.codecs
        if not codecs or not isinstance(codecs[0], Zstd):
            return codecs
        sample = next((tile for tile in tiles if not self.is_fill(tile)), None)
        return codecs if sample is None else (codecs[0].suited(self._plain(sample)), *codecs[1:])

    def is_fill(self, tile: np.ndarray[Any, Any]) -> bool:
        """Whether every byte is that of the fill value: NaN is one, and -0.0 is not 0.0."""
        flat = tile.reshape(-1)
        if flat[:1].tobytes() != self._first or flat[-1:].tobytes() != self._first:
            return False
        words = flat.view(self._fill.dtype).reshape(-1, len(self._fill))
        return bool((words == self._fill).all())

    def _plain(self, tile: np.ndarray[Any, Any]) -> Bytes:
        """The bytes of a tile in the order and the endianness that metadata says."""
        if self.metadata.order:
            tile = np.ascontiguousarray(tile.transpose(self.metadata.order))
        if self.metadata.endian == "big" and self.dtype.itemsize > 1:
            tile = tile.astype(self.dtype.newbyteorder(">"))
        return tile.reshape(-1).view(np.uint8).data


class Chosen:
    """The codecs for the tiles of an epoch or a shard, chosen once, by the first who asks."""

    def __init__(self, encoder: Encoder, tiles: Iterable[np.ndarray[Any, Any]]) -> None:
        self._encoder, self._tiles = encoder, tiles
        self._lock = threading.Lock()
        self._codecs: tuple[Codec, ...] | None = None

    def codecs(self) -> tuple[Codec, ...]:
        """The codecs; they depend on the tiles alone, however threads run."""
        with self._lock:
            if self._codecs is None:
                self._codecs = self._encoder.suited(self._tiles)
            return self._codecs

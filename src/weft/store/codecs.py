"""Codecs of Zarr v3: from the bytes of a chunk to the stored bytes, and back.

A chunk goes through `transpose`, becomes bytes (`bytes`), and then goes through any number of
codecs from bytes to bytes. Each is a small value with the configuration that `zarr.json` holds.
All of them release the interpreter lock while they work.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from weft.errors import WeftError
from weft.extra import needed
from weft.store import blosc_frames
from weft.store.decompress import (
    CodecError,
    copy_into,
    unblosc,
    unblosc_into,
    ungzip,
    ungzip_into,
    unlz4,
    unlz4_into,
    unzstd,
    unzstd_into,
)
from weft.store.dtypes import Bytes, Pieces
from weft.store.filters import CHECKSUMS, MAX_TEXT, Filter, Reorder, VlenText
from weft.store.native import BLOSC, ZSTD, Compression

Values: TypeAlias = np.ndarray[Any, Any]
BatchEncoder: TypeAlias = Callable[[Values, Sequence[int], Values], "EncodedChunks"]
"""Encodes some of the tiles that are the rows of an array of bytes.

The result may lie in memory that is given: a 128th more than the tiles, and 1 KiB for each.
"""

__all__ = ["Blosc", "Codec", "CodecError", "Crc32c", "Gzip", "Lz4", "Zstd"]


class EncodedChunks(NamedTuple):
    """Encoded chunks, as they are stored one after the other."""

    buffers: Sequence[Bytes]
    """All bytes in order; a chunk may be several of them, and one of them several chunks."""
    sizes: np.ndarray[Any, Any]
    """The bytes of each chunk; 0 for one that is all fill value."""

    @classmethod
    def of(cls, chunks: Sequence[Pieces | None]) -> EncodedChunks:
        """Return chunks of which each is given in pieces; None is one that is all fill value.

        >>> found = EncodedChunks.of([(b"ab", b"c"), None, (b"d",)])
        >>> found.sizes.tolist(), b"".join(found.buffers)
        ([3, 0, 1], b'abcd')
        """
        sizes = [0 if chunk is None else sum(map(len, chunk)) for chunk in chunks]
        return cls([piece for chunk in chunks for piece in chunk or ()], np.array(sizes, np.int64))

    @property
    def nbytes(self) -> int:
        """The bytes of all chunks."""
        return int(self.sizes.sum())

    def with_checksums(self) -> EncodedChunks:
        """Return the chunks with a CRC32C at the end of each."""
        buffers, left = list[Bytes](), iter(self.buffers)
        for size in self.sizes.tolist():
            pieces, missing = list[Bytes](), size
            while missing:
                pieces.append(next(left))
                missing -= len(pieces[-1])
            buffers += pieces
            buffers.append(checksum(*pieces))
        return EncodedChunks(buffers, self.sizes + 4)


@dataclass(frozen=True, slots=True)
class _StoredFields:
    """A codec whose fields are its configuration."""

    @property
    def configuration(self) -> dict[str, Any]:
        """The configuration in `zarr.json`."""
        return {each.name: getattr(self, each.name) for each in fields(self) if not each.metadata}


@dataclass(frozen=True, slots=True)
class Zstd(_StoredFields):
    """Zstandard, by `zstandard`."""

    level: int = 1
    checksum: bool = False
    table: int = field(default=0, metadata={"stored": False})
    """The logarithm of the size of the hash table of matches; 0 for the default of the level.

    It is not part of the configuration: readers do not need it.
    """

    name = "zstd"

    def encode(self, data: Bytes) -> Bytes:
        """Return the encoded bytes."""
        encoded: bytes = self._thread_compressor(len(data)).compress(data)
        return encoded

    def _thread_compressor(self, size: int) -> Any:
        """Return the compressor of this thread for chunks of about `size` bytes."""
        known: dict[tuple[Zstd, int], Any] = _LOCAL.__dict__.setdefault("zstd", {})
        key = self, size.bit_length() if self.table else 0
        if key not in known:
            known[key] = self._compressor(size)
        return known[key]

    def _compressor(self, size: int) -> Any:
        zstandard = needed("zstandard", "store")
        if not self.table:
            return zstandard.ZstdCompressor(self.level, write_checksum=self.checksum)
        return zstandard.ZstdCompressor(
            compression_params=zstandard.ZstdCompressionParameters.from_level(
                self.level,
                source_size=size,
                hash_log=self.table,
                write_checksum=self.checksum,
                write_content_size=True,
            )
        )

    def batch_encoder(self, size: int) -> BatchEncoder | None:
        """Return what compresses several chunks of `size` bytes by one call, if there is one."""
        features = getattr(needed("zstandard", "store"), "backend_features", ())
        return self._encode_batch if "multi_compress_to_buffer" in features else None

    def compression(self, size: int) -> Compression:
        """Return how compiled code encodes chunks."""
        return Compression(
            *(ZSTD, self.level), hash_log=self.table, has_content_checksum=self.checksum
        )

    def _encode_batch(self, tiles: Values, numbers: Sequence[int], memory: Values) -> EncodedChunks:
        size = tiles.shape[1]
        places = np.full((len(numbers), 2), size, np.uint64)
        places[:, 0] = size * np.asarray(numbers, np.uint64)
        pool = tiles.reshape(-1)
        source = needed("zstandard", "store").BufferWithSegments(pool, places.tobytes())
        found = self._thread_compressor(size).multi_compress_to_buffer(source, threads=1)
        buffers = [memoryview(found[n]) for n in range(len(numbers))]
        return EncodedChunks(buffers, np.array([len(buffer) for buffer in buffers]))

    def tuned(self, sample: Bytes) -> Zstd:
        """Return the same codec with the table that is quickest for data like a sample.

        Noise has no matches: a table that fits the first-level cache then gives frames within half
        a percent of the default's size, in two thirds of the time.
        """
        if self.table or self.level not in (1, 2) or len(sample) < _MIN_TUNED:
            return self
        quick = replace(self, table=_SMALL_TABLE)
        return quick if len(quick.encode(sample)) <= 1.005 * len(self.encode(sample)) else self

    decode = staticmethod(unzstd)
    decode_into = staticmethod(unzstd_into)


@dataclass(frozen=True, slots=True)
class Gzip(_StoredFields):
    """Gzip, by zlib."""

    level: int = 1

    name = "gzip"

    def encode(self, data: Bytes) -> Bytes:
        """Return the encoded bytes."""
        packer = zlib.compressobj(self.level, zlib.DEFLATED, 31)
        return packer.compress(data) + packer.flush()

    decode = staticmethod(ungzip)
    decode_into = staticmethod(ungzip_into)


@dataclass(frozen=True, slots=True)
class Blosc(_StoredFields):
    """Blosc 1, by `numcodecs`: a shuffle of bytes or bits, then a compressor."""

    cname: Literal["lz4", "lz4hc", "zstd", "zlib", "blosclz"] = "lz4"
    clevel: int = 5
    shuffle: Literal["noshuffle", "shuffle", "bitshuffle"] = "shuffle"
    typesize: int = 0
    """The bytes of an element; 0 for those of the array."""
    blocksize: int = 0

    name = "blosc"

    @property
    def configuration(self) -> dict[str, Any]:
        """The configuration in `zarr.json`."""
        stored = {each.name: getattr(self, each.name) for each in fields(self)}
        return stored | {"typesize": self.typesize or 1}

    @property
    def zstd_level(self) -> int:
        """The zstd level that Blosc uses for `clevel`."""
        return 2 * self.clevel - 1 if self.clevel < 9 else 22

    @property
    def block(self) -> int:
        """The bytes of a block; 0 for what the library chooses.

        It cuts chunks into blocks of 32 KiB at its lowest level, and zstd starts anew with each of
        them: larger ones are smaller when compressed, in two thirds of the time.
        """
        return self.blocksize or (_ZSTD_BLOCK if self.cname == "zstd" else 0)

    def encode(self, data: Bytes) -> Bytes:
        """Return the encoded bytes."""
        blosc = needed("numcodecs.blosc", "store")
        array = np.frombuffer(data, dtype=f"V{self._width(len(data))}")
        kind = _SHUFFLES.index(self.shuffle)
        encoded: bytes = blosc.compress(array, self.cname.encode(), self.clevel, kind, self.block)
        return encoded

    def batch_encoder(self, size: int) -> BatchEncoder | None:
        """Return what compresses several chunks of `size` bytes by one call, if there is one."""
        settings = self.cname, self.clevel, self.shuffle, self._width(size), self.block
        made = blosc_frames.encoder(blosc_frames.BloscSettings(*settings), size)
        return None if made is None else lambda *given: EncodedChunks(*made.encode(*given))

    def compression(self, size: int) -> Compression:
        """Return how compiled code encodes chunks of `size` bytes."""
        shuffle, width = _SHUFFLES.index(self.shuffle), self._width(size)
        return Compression(BLOSC, self.clevel, shuffle, width, self.block, name=self.cname.encode())

    def _width(self, size: int) -> int:
        """Return the bytes of an element, by which bytes are shuffled."""
        return self.typesize if self.typesize and size % self.typesize == 0 else 1

    decode = staticmethod(unblosc)
    decode_into = staticmethod(unblosc_into)


@dataclass(frozen=True, slots=True)
class Lz4(_StoredFields):
    """LZ4 as numcodecs writes it: the size, then a raw block."""

    acceleration: int = 1

    name = "numcodecs.lz4"

    def encode(self, data: Bytes) -> Bytes:
        """Return the encoded bytes."""
        encoded: bytes = needed("numcodecs.lz4", "store").compress(data, self.acceleration)
        return encoded

    decode = staticmethod(unlz4)
    decode_into = staticmethod(unlz4_into)


@dataclass(frozen=True, slots=True)
class Crc32c(_StoredFields):
    """A CRC32C of four bytes after the data."""

    name = "crc32c"

    def encode(self, data: Bytes) -> Bytes:
        """Return the encoded bytes."""
        return b"".join((data, checksum(data)))

    def decode(self, data: Bytes, limit: int) -> Bytes:
        """Return the bytes before the checksum, after comparing them."""
        if len(data) < 4:
            raise CodecError(f"{len(data)} B are too few for a checksum")
        body = memoryview(data)[:-4]
        check_checksum(body, data[-4:])
        return body

    def decode_into(self, data: Bytes, out: memoryview, first: int, stop: int) -> None:
        """Decode into a buffer of the exact size."""
        copy_into(self.decode(data, len(out)), out)


Codec: TypeAlias = Zstd | Gzip | Blosc | Lz4 | Crc32c | Filter | Reorder | VlenText
"""A codec from bytes to bytes; filters are only decoded."""

_LOCAL = threading.local()

_SMALL_TABLE = 10
"""The logarithm of the entries of a table of 4 KiB."""

_ZSTD_BLOCK = 1 << 20
"""Bytes of a Blosc block that zstd compresses; a chunk that is smaller is one block."""

_MIN_TUNED = 1 << 15
"""Bytes of a chunk below which the default table is small as well."""

_MAX_JOINED = 1 << 14
"""Bytes of a chunk up to which copying it next to its checksum is quicker than two writes."""


def checksum(*pieces: Bytes) -> bytes:
    """Return the CRC32C of bytes, as it is stored; they may be in pieces.

    >>> checksum(b"123456789").hex()
    '839206e3'
    >>> checksum(b"12345", b"6789").hex()
    '839206e3'
    """
    library = needed("google_crc32c", "store")
    value = 0
    for data in pieces:
        # The C extension takes arrays without a copy, but not memoryviews; pure Python takes bytes.
        in_place = library.implementation == "c" and len(data)
        value = library.extend(value, np.frombuffer(data, np.uint8) if in_place else bytes(data))
    return value.to_bytes(4, "little")


def check_checksum(data: Bytes, stored: Bytes) -> None:
    """Raise `CodecError` unless the CRC32C of `data` equals the stored one."""
    computed = checksum(data)
    if computed != bytes(stored):
        raise CodecError(
            f"checksum mismatch: {bytes(stored).hex()} is stored, and the CRC32C of the "
            f"{len(data)} B before it is {computed.hex()}"
        )


def has_checksum(codecs: Sequence[Codec]) -> bool:
    """Return whether a chunk carries a checksum."""
    return any(
        isinstance(codec, Crc32c) or (isinstance(codec, Filter) and codec.id in CHECKSUMS)
        for codec in codecs
    )


def with_checksum(codecs: Sequence[Codec]) -> tuple[Codec, ...]:
    """Return the codecs with a CRC32C at the end, unless one of them is a CRC32C already.

    >>> with_checksum([Gzip(5)])
    (Gzip(level=5), Crc32c())
    """
    return tuple(codecs) if has_checksum(codecs) else (*codecs, Crc32c())


def encode(codecs: Sequence[Codec], data: Bytes) -> Bytes:
    """Return bytes encoded by all codecs, the first first.

    >>> bytes(Gzip().decode(encode([Gzip()], b"abc"), 3))
    b'abc'
    """
    for codec in codecs:
        data = codec.encode(data)
    return data


def encode_pieces(codecs: Sequence[Codec], data: Bytes) -> tuple[Bytes, ...]:
    """Return encoded bytes as pieces that are stored one after the other.

    A checksum at the end is a piece of its own, so that the bytes before it are not copied, unless
    they are few.

    >>> [len(piece) for piece in encode_pieces([Crc32c()], bytes(100_000))]
    [100000, 4]
    """
    if not codecs or not isinstance(codecs[-1], Crc32c):
        return (encode(codecs, data),)
    body = encode(codecs[:-1], data)
    pieces = body, checksum(body)
    return pieces if len(body) > _MAX_JOINED else (b"".join(pieces),)


def _split(codecs: Sequence[Codec]) -> tuple[Sequence[Codec], bool]:
    """Return the codecs before a CRC32C at the end, and whether there is one."""
    has_crc = bool(codecs) and isinstance(codecs[-1], Crc32c)
    return codecs[: len(codecs) - has_crc], has_crc


def compression(codecs: Sequence[Codec], size: int) -> Compression | None:
    """Return how compiled code encodes chunks of `size` bytes; None if it cannot.

    >>> compression([Zstd(3), Crc32c()], 10).level, compression([Gzip()], 10)
    (3, None)
    """
    before, has_crc = _split(codecs)
    if not before:
        return Compression(has_checksum=has_crc)
    if len(before) > 1 or not isinstance(before[0], Zstd | Blosc):
        return None
    return _compression(before[0], size)._replace(has_checksum=has_crc)


@lru_cache(maxsize=1024)
def _compression(codec: Zstd | Blosc, size: int) -> Compression:
    return codec.compression(size)


def batch_encoder(codecs: Sequence[Codec], size: int) -> BatchEncoder | None:
    """Return what encodes several chunks of `size` bytes by one call, if there is one.

    >>> batch_encoder([Gzip()], 10) is None
    True
    """
    before, has_crc = _split(codecs)
    if len(before) != 1 or not isinstance(before[0], Zstd | Blosc):
        return None
    compress = before[0].batch_encoder(size)
    if compress is None or not has_crc:
        return compress

    return lambda *given: compress(*given).with_checksums()


def decode(
    codecs: Sequence[Codec],
    data: Bytes,
    out: memoryview,
    first: int = 0,
    stop: int | None = None,
    limits: Sequence[int] = (),
) -> None:
    """Decode into a buffer of the exact size.

    Only `first:stop` need be filled; the stored bytes may be changed if that is not all. `limits`
    are the most bytes that each codec decodes to, where they are known.

    >>> out = bytearray(3)
    >>> decode([Gzip()], encode([Gzip()], b"abc"), memoryview(out))
    >>> out
    bytearray(b'abc')
    """
    if len(codecs) > 1 and not limits:
        limits = decoded_sizes(codecs, len(out))
    for place in range(len(codecs) - 1, 0, -1):
        data = codecs[place].decode(data, limits[place])
    if codecs:
        codecs[0].decode_into(data, out, first, len(out) if stop is None else stop)
    else:
        copy_into(data, out)


def max_stored(codecs: Sequence[Codec], size: int) -> int:
    """Return the most bytes that a chunk of some size can be stored as; more is not read.

    No codec expands bytes much, and a file may claim anything.
    """
    fixed = stored_size(codecs, size)
    if fixed is not None:
        return fixed
    most = max(decoded_sizes(codecs, size))
    return 2 * max(most, MAX_TEXT if is_text(codecs) else 0) + 4096


def stored_size(codecs: Sequence[Codec], size: int) -> int | None:
    """Return the bytes that a chunk is stored as; None where they depend on its content.

    >>> stored_size([], 10), stored_size([Crc32c()], 10), stored_size([Gzip()], 10)
    (10, 14, None)
    """
    for codec in codecs:
        stored = _encoded_size(codec, size)
        if stored is None:
            return None
        size = stored
    return size


def _encoded_size(codec: Codec, size: int) -> int | None:
    """Return the encoded size of a number of bytes; None where it depends on their content."""
    if isinstance(codec, VlenText):
        return None
    if isinstance(codec, Filter | Reorder):
        return codec.encoded_size(size)
    return size + 4 if isinstance(codec, Crc32c) else None


def decoded_sizes(codecs: Sequence[Codec], size: int) -> list[int]:
    """Return the most bytes that each codec of a chunk of some size decodes to.

    >>> decoded_sizes([Crc32c(), Gzip()], 10)
    [10, 14]
    """
    sizes = [size]
    for codec in codecs[:-1]:
        if isinstance(codec, VlenText):
            sizes.append(MAX_TEXT)
            continue
        fixed = _encoded_size(codec, sizes[-1])
        sizes.append(max_intermediate(sizes[-1]) if fixed is None else fixed)
    return sizes


def is_text(codecs: Sequence[Codec]) -> bool:
    """Return whether elements are texts of any length."""
    return bool(codecs) and isinstance(codecs[0], VlenText)


def is_reading_only(codecs: Sequence[Codec]) -> bool:
    """Return whether codecs of other writers are among them, which Weft does not encode."""
    return any(isinstance(codec, Filter | Reorder | VlenText) for codec in codecs)


def max_intermediate(size: int) -> int:
    """Return the most bytes between two codecs of a chunk of some size."""
    return size + size // 8 + 4096


def codec_workspace(codecs: Sequence[Codec], size: int) -> int:
    """Return the most bytes that encoding or decoding a chunk takes beside its input and output.

    Libraries have tables; a stream that is decompressed grows, and is copied in the end; Blosc
    holds a block three times, and a block may be a whole chunk. Intermediate bytes count too.
    """
    if all(isinstance(codec, Crc32c) for codec in codecs):  # computed where the bytes are
        return 0
    size = max(decoded_sizes(codecs, size))
    apart = len(codecs) - isinstance(codecs[-1], Crc32c)
    between = 2 * max_intermediate(size) if apart > 1 else 0
    tables = max(_TABLES.get(codec.name, 1 << 20) for codec in codecs)
    return between + max(_WORK.get(codec.name, 3) for codec in codecs) * size + tables


def context_memory(codecs: Sequence[Codec], size: int) -> int:
    """Return the bytes that the contexts of a thread keep once it has encoded chunks.

    >>> context_memory([Gzip()], 1 << 20), context_memory([Zstd(1)], 1 << 20) < 2 << 20
    (0, True)
    """
    return sum(_tables(codec, size) for codec in codecs)


def _tables(codec: Codec, size: int) -> int:
    """Return the tables of zstd, which grow with its level; tuning may have tried two."""
    if isinstance(codec, Blosc):
        return _tables(Zstd(codec.zstd_level), size) if codec.cname == "zstd" else 0
    if not isinstance(codec, Zstd):
        return 0
    parameters = needed("zstandard", "store").ZstdCompressionParameters
    tables: int = parameters.from_level(
        codec.level, source_size=size
    ).estimated_compression_context_size()
    return tables + (tables if codec.level in (1, 2) else 0)


_WORK = {"zstd": 1, "gzip": 2, "blosc": 3, "numcodecs.lz4": 1, "crc32c": 2}
"""How many times the bytes of a chunk a codec needs as workspace."""

_TABLES = {"blosc": 5 << 20}
"""Bytes of tables, and of chunks that Blosc compresses together; 1 MiB for other codecs."""


# -- by name, and as in zarr.json

CODECS: dict[str, type[Any]] = {kind.name: kind for kind in (Zstd, Gzip, Blosc, Lz4, Crc32c)} | {
    "lz4": Lz4
}
_CNAMES = ("lz4", "lz4hc", "zstd", "zlib", "blosclz", "snappy")
_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
_RANGES = {
    ("zstd", "level"): (-131072, 22),
    ("gzip", "level"): (0, 9),
    ("blosc", "clevel"): (0, 9),
    ("blosc", "typesize"): (0, (1 << 31) - 1),
    ("blosc", "blocksize"): (0, (1 << 31) - 1),
}
"""The ranges of the numbers of codecs; others have 32 bits."""

NAMED: Mapping[str, tuple[Codec, ...]] = {
    "none": (),
    "zstd": (Zstd(1),),
    "gzip": (Gzip(1),),
    "blosc-lz4": (Blosc("lz4", 5, "shuffle"),),
    "blosc-zstd": (Blosc("zstd", 1, "shuffle"),),
    "lz4": (Lz4(),),
    "crc32c": (Crc32c(),),
}
"""Codecs by name, for the command line and for people."""

CodecLike: TypeAlias = Codec | str | Mapping[str, Any]
"""A codec, its name, or a dictionary as in `zarr.json`."""


def as_codecs(given: CodecLike | Sequence[CodecLike], itemsize: int) -> tuple[Codec, ...]:
    """Return codecs for elements of `itemsize` bytes.

    >>> as_codecs("blosc-zstd", 2)
    (Blosc(cname='zstd', clevel=1, shuffle='shuffle', typesize=2, blocksize=0),)
    >>> as_codecs([{"name": "gzip", "configuration": {"level": 5}}, "crc32c"], 2)
    (Gzip(level=5), Crc32c())
    """
    is_one = isinstance(given, str | Mapping) or not isinstance(given, Iterable)
    many: Any = [given] if is_one or _is_codec(given) else given
    codecs: list[Codec] = []
    for one in (_of_library(each, itemsize) for each in many):
        if isinstance(one, Mapping):
            codecs.append(read_codec(one, "codecs"))
        elif isinstance(one, str) and one not in NAMED:
            raise WeftError(f"{one!r} is not a codec", hint=", ".join(NAMED))
        else:
            codecs += NAMED[one] if isinstance(one, str) else (one,)
    return tuple(_sized(codec, itemsize) for codec in codecs)


def _of_library(given: Any, itemsize: int) -> Any:
    """Return the dictionary of a codec of zarr-python or numcodecs; anything else as it is.

    What zarr-python leaves open is what it would choose for elements of `itemsize` bytes.
    """
    if isinstance(given, str | Mapping) or _is_codec(given):
        return given
    if hasattr(given, "to_dict"):
        data = given.to_dict()
        options = dict(data.get("configuration") or {})
        tunable = getattr(given, "_tunable_attrs", ())
        if "typesize" in tunable:
            options["typesize"] = itemsize
        if "shuffle" in tunable:
            options["shuffle"] = "shuffle" if itemsize > 1 else "bitshuffle"
        return {**data, "configuration": options}
    if getattr(given, "codec_id", None) in ("blosc", "zstd", "gzip"):
        options = given.get_config()
        name, shuffle = options.pop("id"), options.get("shuffle")
        if name == "blosc":
            automatic = "shuffle" if itemsize > 1 else "bitshuffle"
            options["shuffle"] = automatic if shuffle == -1 else _SHUFFLES[shuffle]
            options["typesize"] = options.get("typesize") or itemsize
        return {"name": name, "configuration": options}
    return given


def _is_codec(given: Any) -> bool:
    """Return whether a value has what writing needs; users may define codecs of their own."""
    return all(hasattr(given, name) for name in ("name", "configuration", "encode"))


def _sized(codec: Codec, itemsize: int) -> Codec:
    """Return Blosc with the width of an element, where none is given; refuse invalid settings."""
    if not _is_codec(codec):
        raise WeftError(f"{codec!r} is not a codec", hint=", ".join(NAMED))
    if type(codec) is CODECS.get(codec.name):  # or what is written could not be read
        codec_of(codec.name, codec.configuration, "codecs")
    if isinstance(codec, Blosc) and codec.configuration["cname"] == "snappy":
        raise WeftError("codecs: Blosc with snappy is read, but not written")
    if isinstance(codec, Blosc) and not codec.typesize:
        return replace(codec, typesize=itemsize)
    return codec


def read_codec(data: Mapping[str, Any], path: str) -> Codec:
    """Return a codec from its dictionary in `zarr.json`."""
    name = data.get("name")
    if name not in CODECS:
        raise WeftError(f"{path}: the codec {name!r} is not supported", hint=", ".join(CODECS))
    return codec_of(name, data.get("configuration") or {}, path)


def codec_of(name: str, options: Mapping[str, Any], path: str) -> Codec:
    """Return the codec of a name and a configuration; refuse values out of range."""
    kind = CODECS[name]
    arguments: dict[str, Any] = {}
    for each in fields(kind):
        if each.name not in options or each.metadata:
            continue
        value = options[each.name]
        if each.name == "shuffle" and value in (0, 1, 2, -1):
            value = _SHUFFLES[abs(value)]  # -1: the writer chose, and a frame says what
        choices = {"cname": _CNAMES, "shuffle": _SHUFFLES}.get(each.name)
        if type(value) is not type(each.default) or (choices and value not in choices):
            raise WeftError(f"{path}.configuration.{each.name}: {value!r} is not supported")
        low, high = _RANGES.get((name, each.name), (-(1 << 31), (1 << 31) - 1))
        if type(value) is int and not low <= value <= high:
            raise WeftError(f"{path}.configuration.{each.name}: {value} is not in {low}:{high + 1}")
        arguments[each.name] = value
    codec: Codec = kind(**arguments)
    return codec

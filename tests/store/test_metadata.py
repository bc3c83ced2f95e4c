"""What `zarr.json` says is read as it was written; what is not understood is refused by name."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.store.cases import CODECS, DTYPES, OWN
from tests.store.foreign import MORE

from weft import WeftError
from weft.store import Blosc, Metadata, Zstd
from weft.store.files import Folder
from weft.store.metadata import KeyEncoding
from weft.values import FrozenMap

FILLS = {
    "bool": [True, False],
    "float16": [1.5, "NaN", "0x7e01", "-Infinity"],
    "float32": [0.1, "NaN", "0x7fc00001", "0x7f800001", "Infinity", -0.0],
    "float64": [1e300, "0xfff8000000000001", "NaN"],
    "bfloat16": [1.0, "0x7fc1", "NaN"],
    "complex64": [[0.0, 1.0], ["NaN", "0x7fc00001"], 0],
    "complex128": [["-Infinity", 2.5], 1j],
}
extensions = st.dictionaries(
    st.sampled_from(["extra", "more"]),
    st.fixed_dictionaries({"must_understand": st.just(False), "n": st.integers(0, 9)}),
)
names = st.one_of(st.none(), st.text(max_size=3))


@st.composite
def metadata(draw):
    rank = draw(st.integers(0, 5))
    dtype = draw(st.sampled_from([*DTYPES, "bfloat16"]))
    chunks = tuple(draw(st.integers(1, 9)) for _ in range(rank))
    is_sharded = draw(st.booleans())
    times = draw(st.integers(1, 3)) if is_sharded else 1
    return Metadata(
        tuple(draw(st.integers(0, 99)) for _ in range(rank)),
        dtype,
        chunks,
        tuple(times * n for n in chunks),
        draw(st.sampled_from([*CODECS, *OWN, *MORE])),
        draw(st.sampled_from(FILLS.get(dtype, [0, 1, 100]))),
        tuple(draw(st.permutations(range(rank)))) if draw(st.booleans()) else (),
        draw(st.sampled_from(["little", "big"])),
        draw(st.sampled_from(["start", "end"])),
        draw(st.one_of(st.none(), st.tuples(*[names] * rank))),
        FrozenMap(draw(st.dictionaries(st.text(max_size=3), st.integers())).items()),
        is_sharded,
        KeyEncoding(draw(st.sampled_from(["default", "v2"])), draw(st.sampled_from(["/", "."]))),
        draw(st.booleans()),
        draw(st.sampled_from(["little", "big"])),
        FrozenMap(draw(extensions).items()),
    )


@given(metadata())
def test_written_shards_are_read(said):
    again = Metadata.from_json(said.to_json())
    assert again == said
    assert again.to_json() == said.to_json()
    assert np.asarray(again.fill).tobytes() == np.asarray(said.fill).tobytes()


def test_fill_values_are_read_bit_by_bit():
    for dtype, value, bits in [
        ("float32", "0x7fc00001", "7fc00001"),
        ("float32", "0x7f800001", "7f800001"),
        ("float64", "0xfff8000000000001", "fff8000000000001"),
        ("float16", "0x7e01", "7e01"),
        ("bfloat16", "0x7fc1", "7fc1"),
        ("bfloat16", 1.0, "3f80"),
        ("complex64", ["0x7fc00001", 1.5], "3fc000007fc00001"),
        ("int16", -2, "fffe"),
        ("bool", True, "01"),
    ]:
        fill = Metadata((4,), dtype, (2,), (4,), fill_value=value).fill
        assert (
            np.asarray(fill).astype(np.asarray(fill).dtype.newbyteorder("<")).tobytes()[::-1].hex()
            == bits
        ), dtype


def test_fill_values_of_bytes_and_records():
    """As the specification has it: numbers for bytes, and an object for a record."""
    raw = Metadata.from_json(said(data_type="r16", fill_value=[1, 255]))
    assert raw.fill.tobytes() == b"\x01\xff"
    record = Metadata.from_json(said(data_type=RECORD, fill_value={"b": "NaN", "a": 7})).fill
    assert record["a"] == 7
    assert np.isnan(record["b"])


def said(**changes):
    data = json.loads(Metadata((4, 6), "uint16", (2, 2), (4, 4), (Zstd(1),)).to_json())
    data |= changes
    return json.dumps({key: value for key, value in data.items() if value is not ...})


def chain(*codecs):
    return said(codecs=list(codecs))


def sharded(**changes):
    (codec,) = json.loads(said())["codecs"]
    return chain({"name": codec["name"], "configuration": codec["configuration"] | changes})


FIELDS = [{"name": "a", "data_type": "int16"}, {"name": "b", "data_type": "float32"}]
RECORD = {"name": "struct", "configuration": {"fields": FIELDS}}
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}
SHARDING = json.loads(said())["codecs"][0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "zarr.json is not JSON"),
        ("[" * 100_000, "zarr.json is not JSON"),
        ("[]", "zarr_format is None"),
        (said(zarr_format=2), "not of Zarr v3: zarr_format is 2"),
        (said(node_type="group"), "describes a 'group', not an array"),
        (said(storage_transformers=[{"name": "x"}]), "storage_transformers: .* is not supported"),
        (said(data_type="bytes"), "data_type: 'bytes' is not supported"),
        (said(data_type=3), "data_type: expected a name and its configuration, got 3"),
        (said(shape=[4, -1]), "shape: expected integers from 0 on"),
        (said(shape=[4]), "shape has rank 1 and chunk_shape rank 2"),
        (said(shape=[True, 4]), "shape: expected integers"),
        (said(fill_value=-1), "-1 is not of uint16"),
        (said(fill_value=1.5), "^fill_value: 1.5 is not of uint16"),
        (said(data_type="float32", fill_value="0x7fc0"), "'0x7fc0' is not a fill value of float32"),
        (said(data_type="float32", fill_value="0x0_000001"), "is not a fill value of float32"),
        (said(data_type="r16", fill_value=[1, 256]), r"\[1, 256\] is not a fill value of \|V2"),
        (said(data_type=RECORD, fill_value={"a": 1}), r"{'a': 1} is not a fill value of"),
        (said(fill_value=...), "None is not a fill value of uint16"),
        (said(chunk_grid={"name": "rectilinear"}), "'regular' can be read, got 'rectilinear'"),
        (said(chunk_key_encoding={"name": "x"}), "'default' and 'v2' can be read, got 'x'"),
        (
            said(chunk_key_encoding={"name": "v2", "configuration": {"separator": "-"}}),
            "the separator is '/' or '.', got '-'",
        ),
        (said(dimension_names=["x"]), "dimension_names: expected 2 names"),
        (said(dimension_names=[1, 2]), "a name is text or null"),
        (said(attributes=3), "attributes: expected an object, got 3"),
        (said(other=3), "other: unknown field, which may not be ignored"),
        (said(other={"must_understand": True}), "other: unknown field"),
        (said(codecs=[]), "codecs: expected a list of codecs"),
        (chain(BYTES, 3), r"codecs\[1\]: expected a name and its configuration, got 3"),
        (chain(BYTES, {"name": "zstd", "configuration": 3}), "configuration: expected an object"),
        (chain(BYTES, {"name": "pcodec"}), r"codecs\[1\]: the codec 'pcodec' is not supported"),
        (chain({"name": "zstd"}, BYTES), "'zstd' is out of order"),
        (chain(BYTES, BYTES), "'bytes' is out of order"),
        (chain(BYTES, TRANSPOSE), "'transpose' is out of order"),
        (chain(TRANSPOSE), "'bytes' is missing"),
        (chain(SHARDING, {"name": "gzip"}), "'gzip' beside 'sharding_indexed' is not supported"),
        (chain(TRANSPOSE, SHARDING), "'transpose' beside 'sharding_indexed' is not supported"),
        (sharded(codecs=[SHARDING]), "the codec 'sharding_indexed' is not supported"),
        (sharded(chunk_shape=[3, 2]), r"chunks of \[3, 2\] do not fill shards of \[4, 4\]"),
        (sharded(chunk_shape=[0, 2]), "dimension 0 of size 4 is cut into chunks of 0"),
        (sharded(index_location="middle"), "'middle' is neither start nor end"),
        (sharded(index_codecs=[BYTES, {"name": "zstd"}]), "bytes and crc32c are supported, got"),
        (
            chain({"name": "bytes", "configuration": {"endian": "odd"}}),
            "endian is little or big, got 'odd'",
        ),
        (
            chain({"name": "transpose", "configuration": {"order": [0, 0]}}, BYTES),
            r"\[0, 0\] is not a permutation of 2 dimensions",
        ),
        (
            chain(BYTES, {"name": "blosc", "configuration": {"cname": "other"}}),
            r"codecs\[1\].configuration.cname: 'other' is not supported",
        ),
        (
            chain(BYTES, {"name": "zstd", "configuration": {"level": "1"}}),
            r"codecs\[1\].configuration.level: '1' is not supported",
        ),
        (
            chain(BYTES, {"name": "gzip", "configuration": {"level": 10**30}}),
            r"codecs\[1\].configuration.level: 10+ is not in 0:10",
        ),
        (
            chain(SHARDING, SHARDING),
            "'sharding_indexed' beside 'sharding_indexed' is not supported",
        ),
        (said(shape=[1] * 65), "shape: 65 dimensions; at most 64 are read"),
        (said(shape=[1 << 63, 1]), "shape: 9223372036854775808 is more than 9223372036854775807"),
        (said(data_type="bool", fill_value=1), "1 is not a fill value of bool"),
        (said(data_type="x" * 5000), r"^data_type: 'x{988}…"),
        (said(node_type=...)[:-1] + f', "node_type": {"[" * 900}{"]" * 900}}}', "describes a"),
    ],
)
def test_metadata_that_are_not_understood_are_refused(text, message):
    with pytest.raises(WeftError, match=message):
        Metadata.from_json(text)


def test_spellings_of_others():
    """A name alone, orders by letter, two orders in a row, codecs without a configuration."""
    found = Metadata.from_json(chain({"name": "transpose", "configuration": {"order": "F"}}, BYTES))
    assert found.order == (1, 0)
    assert Metadata.from_json(chain(TRANSPOSE, TRANSPOSE, BYTES)).order == ()
    assert Metadata.from_json(chain("bytes", "zstd", "crc32c")).codecs[0] == Zstd()
    shuffled = {"name": "blosc", "configuration": {"cname": "zstd", "shuffle": 2}}
    assert Metadata.from_json(chain(BYTES, shuffled)).codecs == (
        Blosc("zstd", 5, "bitshuffle", typesize=2),
    )
    assert Metadata.from_json(said(chunk_key_encoding="v2")).keys == KeyEncoding("v2", ".")
    assert Metadata.from_json(said(data_type={"name": "uint16"})).dtype == "uint16"
    empty = said(
        shape=[0, 6], chunk_grid={"name": "regular", "configuration": {"chunk_shape": [0, 4]}}
    )
    assert Metadata.from_json(empty).shards == (0, 4)


def test_orders_one_after_the_other():
    """As NumPy composes them."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        first, second = (list(map(int, rng.permutation(4))) for _ in range(2))
        codecs = [{"name": "transpose", "configuration": {"order": o}} for o in (first, second)]
        text = json.loads(Metadata((2, 3, 4, 5), "uint8", (2, 3, 4, 5), (2, 3, 4, 5)).to_json())
        text["codecs"] = [*codecs, "bytes"]
        order = Metadata.from_json(json.dumps(text)).order or tuple(range(4))
        array = np.empty((2, 3, 4, 5))
        assert array.transpose(order).shape == array.transpose(first).transpose(second).shape


def test_fields_that_need_not_be_understood_are_kept():
    extra = {"must_understand": False, "by": "somebody"}
    found = Metadata.from_json(said(extra=extra))
    assert found.extensions == {"extra": extra}
    assert json.loads(found.to_json())["extra"] == extra


def test_walking_a_folder(tmp_path):
    sink = Folder(tmp_path)
    with pytest.raises(WeftError, match=r"there is no Zarr array at .*: it has no zarr\.json"):
        Metadata.load(sink)
    (tmp_path / ".zarray").write_text("{}", encoding="utf-8")
    with pytest.raises(WeftError, match=r"is of Zarr v2: there is a \.zarray"):
        Metadata.load(sink)
    (tmp_path / "zarr.json").write_bytes(b"\xff\xfe")
    with pytest.raises(WeftError, match=r"zarr\.json is not UTF-8"):
        Metadata.load(sink)
    (tmp_path / "zarr.json").write_text("{}", encoding="utf-8")
    with pytest.raises(WeftError, match=f"{tmp_path}: zarr.json is not of Zarr v3"):
        Metadata.load(sink)
    (tmp_path / "zarr.json").write_text(said(), encoding="utf-8")
    assert Metadata.load(sink).shape == (4, 6)

"""Hostile text of meshes, shardings, rules and index notation is read or refused, within limits."""

from tests.fuzzing import Reader, fuzz
from tests.trials import large

from weft import DeviceMesh, ShardingSpec
from weft.lang.notation import Notation
from weft.lang.rule import read_rule

MESH = DeviceMesh.parse('@m = <["x"=8, "y"=2, "z"=4]>')


def _read_mesh(data: bytes) -> None:
    mesh = DeviceMesh.parse(data.decode("utf-8", "replace"))
    assert DeviceMesh.parse(str(mesh)) == mesh
    assert len(mesh.coord(mesh.size - 1)) == mesh.ndim


def _meshes() -> list[bytes]:
    return [
        b'@m = <["x"=2]>',
        b'sdy.mesh @"my cluster" = <["dp"=2, "tp"=4, "x"=1]>',
        b'@m = <["x"=2, "y"=2], device_ids=[3, 1, 0, 2]>',
        b"@m = <[]>",
        b"@m = <[], device_ids=[5]>",
    ]


def _listed(count: int, entry: str) -> str:
    return ", ".join(entry.format(n) for n in range(count))


def _hostile_meshes() -> list[bytes]:
    texts = [
        "@m = <[" + _listed(40_000, '"a{}"=2') + "]>",
        "@m = <[" + _listed(40_000, '"x"=1') + "]>",
        "@m = <[" + _listed(20_000, '"{}"=999999999999999999') + "]>",
        '@m = <["x"=100000], device_ids=[' + _listed(large(100_000), "{}") + "]>",
        '@m = <["x"=999999999999999999], device_ids=[0]>',
        f"@{'m' * 1_000_000} = <[]>",
        f'@m = <["{"x" * 1_000_000}"=2]>',
        " " * 3_000_000,
        f"@m = <[{' ' * 1_000_000}]>",
    ]
    return [text.encode() for text in texts]


MESHES = Reader(_meshes, _read_mesh, hostile=_hostile_meshes)


def _read_sharding(data: bytes) -> None:
    spec = ShardingSpec.parse(data.decode("utf-8", "replace"), MESH)
    assert ShardingSpec.parse(str(spec), MESH) == spec


def _shardings() -> list[bytes]:
    return [
        b'<@m, [{"x", ?}p1, {}]>',
        b'#sdy.sharding<@m, [{"x":(1)2}, {"x":(2)4, "y"}], replicated={"z":(1)2}>',
        b'<@m, [{?}], unreduced=max{"y"}, unreduced={"x"}>',
        b"<@m, []>",
    ]


def _hostile_shardings() -> list[bytes]:
    texts = [
        "<@m, [" + ", ".join(["{}"] * 300_000) + "]>",
        "<@m, [{" + _listed(100_000, '"x"') + "}]>",
        "<@m, [], replicated={" + _listed(100_000, '"x":(1)2') + "}>",
        '<@m, [{"x":(999999999999999999)999999999999999999}]>',
        '<@m, [{"x":(0)0}, {"y":(1)0}, {"z":(0)2}]>',
        '<@m, [{"x"}p999999999999999999]>',
    ]
    return [text.encode() for text in texts]


SHARDINGS = Reader(_shardings, _read_sharding, hostile=_hostile_shardings)


def _read_notation(data: bytes) -> None:
    str(Notation.parse(data.decode("utf-8", "replace"), s=2, d=1))


def _notations() -> list[bytes]:
    return [
        b"b m k, b k n -> b m n  sum: k",
        b"m k, k n, + n -> m n  sum: k",
        b"b c s*y+d*u-1, f c u -> b f y  sum: c u",
        b"m [k], (y+u)/2 2*y+:3 -> m [r<k] y 1  max: u",
        b" -> ",
    ]


def _hostile_notations() -> list[bytes]:
    names = " ".join(f"i{n}" for n in range(large(60_000)))
    texts = [
        f"{names} -> {names}",
        f"{names} -> sum: {names}",
        f"{'+'.join(['i'] * large(100_000))} -> i",
        f"{'*'.join(['9' * 18] * 20_000)}*i -> i",
        "," * large(300_000) + "->" + "," * large(300_000),
        "[" * 100_000,
    ]
    return [text.encode() for text in texts]


NOTATIONS = Reader(_notations, _read_notation, hostile=_hostile_notations)


def _rules() -> list[bytes]:
    return [
        b"<([i, kl], [k, j])->([i, lj]) {i=8, j=4, k=2, l=6} reduction={k}, custom>",
        b"#sdy.op_sharding_rule<([i])->([i]) {i=8} permutation={i}, is_custom>",
        b"<()->() {}>",
    ]


RULES = Reader(_rules, lambda data: read_rule(data.decode("utf-8", "replace")))


def test_hostile_meshes_are_read_or_refused():
    fuzz("tests.layout.test_fuzz:MESHES")


def test_hostile_shardings_are_read_or_refused():
    fuzz("tests.layout.test_fuzz:SHARDINGS")


def test_hostile_notations_are_read_or_refused():
    fuzz("tests.layout.test_fuzz:NOTATIONS")


def test_hostile_rules_are_read_or_refused():
    fuzz("tests.layout.test_fuzz:RULES")

"""Hostile StableHLO is read or refused, within limits; so is the HLO of compiled programs."""

import pytest
from tests.fuzzing import Reader, fuzz
from tests.mutations import mutate_bytes, mutate_code
from tests.plan import region_programs, writer
from tests.plan.families import FAMILIES
from tests.plan.region_programs import LOOP
from tests.trials import large

from weft.interop.hlo import collectives
from weft.interop.stablehlo import read

T = "tensor<4xf32>"


def _function(name, body, returned="%0"):
    lines = "\n".join(f"  {line}" for line in body)
    return f"func.func @{name}(%x: {T}) -> {T} {{\n{lines}\n  return {returned} : {T}\n}}\n"


def _call(result, name, operand="%x"):
    return f"{result} = func.call @{name}({operand}) : ({T}) -> {T}"


def doubling(count):
    """Functions of which each calls the one before it twice."""
    first = _function("f0", [f"%0 = stablehlo.tanh %x : {T}"])
    rest = [
        _function(f"f{n}", [_call("%1", f"f{n - 1}"), _call("%0", f"f{n - 1}", "%1")])
        for n in range(1, count)
    ]
    return "".join([first, *rest, _function("main", [_call("%0", f"f{count - 1}")])])


def chain(count):
    """Functions of which each calls the one before it."""
    first = _function("f0", [f"%0 = stablehlo.tanh %x : {T}"])
    rest = [_function(f"f{n}", [_call("%0", f"f{n - 1}")]) for n in range(1, count)]
    return "".join([first, *rest, _function("main", [_call("%0", f"f{count - 1}")])])


def nested(count):
    """Choices in choices."""
    inner = f"%0 = stablehlo.tanh %x : {T}\nstablehlo.return %0 : {T}"
    for _ in range(count):
        inner = (
            f'%0 = "stablehlo.case"(%i) ({{\n{inner}\n}}) : (tensor<i32>) -> {T}\n'
            f"stablehlo.return %0 : {T}"
        )
    inner = inner.rpartition("stablehlo.return")[0]
    return f"func.func @main(%x: {T}, %i: tensor<i32>) -> {T} {{\n{inner}\nreturn %0 : {T}\n}}"


def _hostile():
    loops = "".join(
        f"%l{n} = stablehlo.while(%a{n} = %x) : {T}\n"
        f"cond {{ %c = stablehlo.constant dense<true> : tensor<i1>\n"
        f"stablehlo.return %c : tensor<i1> }} do {{ stablehlo.return %a{n} : {T} }}\n"
        for n in range(1000)
    )
    long = "f" * 3000
    texts = [
        doubling(16),
        doubling(200),
        chain(100),
        chain(500),
        chain(5000),
        _function("main", [_call("%0", "main")]),
        _function("f", [_call("%0", "main")]) + _function("main", [_call("%0", "f")]),
        nested(20),
        nested(45),
        nested(200),
        nested(20_000),
        _function(
            "main", [f"%l = stablehlo.tanh %x : {T}", loops, f"%0 = stablehlo.tanh %x : {T}"]
        ),
        doubling(12).replace("@f", f"@{long}"),
        '"mhlo.reduce"() : () -> ()',
        'func.func @main() { "mhlo.reduce"() : () -> () return }',
        'func.func @main() { "mhlo.convolution"() : () -> () return }',
        'func.func @main() { "mhlo.sort"() ({}) : () -> () return }',
        'func.func @main() { "mhlo.while"() ({}, {}) : () -> () return }',
        'func.func @main() { "mhlo.case"() ({^bb0:}) : () -> () return }',
        'func.func @main() { "sdy.propagation_barrier"() : () -> () return }',
        "func.func @main() { %0 = stablehlo.constant dense<0> : tensor<999999999999xi8> return }",
        "module { " * 50_000,
        "tensor<" * 50_000,
        "[" * 50_000,
        '"' + "\\" * 100_000,
        "#a = " + "{a = " * 50 + "1" + "}" * 50,
        "\x00",
    ]
    return [text.encode() for text in texts]


def _documents():
    texts = [LOOP.replace("COLUMNS", '{"y"}'), doubling(4), nested(2)]
    texts += [region_programs.Writer(seed).text(4) for seed in range(20)]
    texts += [writer.Writer(seed).text(6, FAMILIES) for seed in range(20)]
    return [text.encode() for text in texts]


def _read(data):
    graph = read(data.decode("utf-8", "replace"))
    assert graph.outputs is not None
    str(graph)


MODULES = Reader(_documents, _read, mutate_code, _hostile)


def _compiled():
    lines = [
        "%r = f32[8,16] all-reduce(%x), replica_groups=[2,4]<=[8], to_apply=%add",
        "%g = (bf16[8], bf16[64]) all-gather-start(%x), replica_groups={{0,1,2,3}}, dimensions={0}",
        "%p = f32[4]{0} collective-permute(%x), source_target_pairs={{0,1},{1,2},{2,2}}",
        "%a = pred[] all-to-all(%x), replica_groups=mesh['x'=2,'y'=4]{'x','y'}",
        "%s = c64[2] reduce-scatter(%x), replica_groups={}",
        "%t = f32[8] tanh(%r)",
    ]
    return ["\n".join(lines).encode(), lines[3].encode()]


def _hostile_compiled():
    texts = [
        "= " * large(500_000),
        "= x " + "all-reduce " * 200_000,
        "= f32[8] all-reduce(%x), " + "replica_groups=mesh[" * 50_000,
        "= f32[8] all-reduce(%x), replica_groups=mesh['x'=2]{'y'}",
        "= f32[8] all-reduce(%x), replica_groups=[1,0]",
        "= f7[8] all-reduce(%x)",
        f"= f32[{'9' * 5000}] all-reduce(%x)",
        "= " + "f32[8] " * large(200_000) + "all-reduce(%x)",
    ]
    return [text.encode() for text in texts]


COMPILED = Reader(
    _compiled,
    lambda data: collectives(data.decode("utf-8", "replace"), 8),
    mutate_bytes,
    _hostile_compiled,
)


def test_hostile_compiled_programs_are_read_or_refused():
    fuzz("tests.interop.test_fuzz:COMPILED")


@pytest.mark.slow
def test_hostile_modules_are_read_or_refused():
    fuzz("tests.interop.test_fuzz:MODULES")

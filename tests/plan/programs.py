"""Random programs of factor rules, and Shardy in jaxlib to propagate the same."""

import random
import re
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from math import prod

from jax.interpreters import mlir
from jaxlib.mlir import ir, passmanager

from weft.lang import FactorRule
from weft.plan.propagation.engine import (
    PropagationEngine,
    PropagationNode,
    run_by_operator,
    run_by_user,
)
from weft.plan.propagation.shardings import TensorSharding, append

PASSES = {
    "basic": "sdy-basic-propagate",
    "aggressive": "sdy-aggressive-propagate",
    "op_priority": "sdy-op-priority-propagate",
    "user_priority": "sdy-user-priority-propagate",
}
RUNS = count(1)
LETTERS = "ijklmnopqrstuvwxyzabcdefgh"
WORDS = {"reduced": "reduction", "whole": "need_replication", "permuted": "permutation"}


@dataclass
class Program:
    """Values with shapes, nodes with rules, and the shardings that someone wrote."""

    mesh: list[int]
    inputs: int
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    nodes: list[PropagationNode] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    shardings: list[TensorSharding | None] = field(default_factory=list)
    output_shardings: list[TensorSharding | None] = field(default_factory=list)
    priorities: dict[int, tuple[int, ...]] = field(default_factory=dict)


def random_program(seed: int, nodes: int, priorities: bool) -> Program:
    """A program in which every value is used or returned; dead code is not propagated."""
    rng = random.Random(seed)
    program = Program(random_mesh(rng), rng.randint(1, 3))
    for _ in range(program.inputs):
        rank = rng.randint(0, 3)
        program.shapes.append(tuple(rng.choice([2, 4, 6, 8, 12, 16]) for _ in range(rank)))
    while len(program.nodes) < nodes:
        add_node(rng, program)
    used = {value for node in program.nodes for value in node.operands}
    made = range(program.inputs, len(program.shapes))
    program.outputs = [v for v in made if v not in used or rng.random() < 0.15]
    for value, shape in enumerate(program.shapes):
        chance = 0.7 if value < program.inputs else 0.25
        sharding = random_sharding(rng, len(shape), program.mesh) if rng.random() < chance else None
        program.shardings.append(sharding)
        if priorities and sharding is not None:
            program.priorities[value] = tuple(
                rng.choice([0, 0, 1, 2]) if axes or opened else 0
                for axes, opened in zip(sharding.axes, sharding.is_open)
            )
    for value in program.outputs:
        rank = len(program.shapes[value])
        wanted = random_sharding(rng, rank, program.mesh) if rng.random() < 0.3 else None
        program.output_shardings.append(wanted)
    return program


def random_mesh(rng):
    """The sizes of one to three axes; some have parts that do not nest, some have one cell."""
    return [rng.choice([1, 2, 2, 3, 4, 6, 8, 12]) for _ in range(rng.randint(1, 3))]


def add_node(rng: random.Random, program: Program) -> None:
    """An operator with shared, compound, reduced and new factors."""
    operands = [rng.randrange(len(program.shapes)) for _ in range(rng.randint(1, 3))]
    sizes: list[int] = []
    mappings = [random_mapping(rng, program.shapes[value], sizes) for value in operands]
    of_operands = set(range(len(sizes)))
    free = list(of_operands)
    rng.shuffle(free)
    result: list[tuple[int, ...]] = []
    for _ in range(rng.randint(0, 3)):
        chance = rng.random()
        if free and chance < 0.65:
            result.append((free.pop(),))
        elif len(free) > 1 and chance < 0.9:
            result.append((free.pop(), free.pop()))
        else:
            sizes.append(rng.choice([2, 3, 4, 8]))
            result.append((len(sizes) - 1,))
    if len(sizes) > len(LETTERS):
        return
    of_result = {factor for dim in result for factor in dim}
    kinds = []
    for factor in range(len(sizes)):
        choices = ["parallel"]
        if factor not in of_result:
            choices = ["reduced", "reduced", "whole"]
        elif factor in of_operands:
            choices = ["parallel", "parallel", "parallel", "permuted", "whole"]
        kinds.append(rng.choice(choices))
    rule = FactorRule(
        tuple(LETTERS[: len(sizes)]), tuple(sizes), tuple(kinds), tuple(mappings), (tuple(result),)
    )
    program.nodes.append(PropagationNode(rule, tuple(operands), (len(program.shapes),)))
    program.shapes.append(tuple(prod(sizes[f] for f in dim) for dim in result))


def random_mapping(rng, shape, sizes):
    used: set[int] = set()
    dims = []
    for size in shape:
        parts = [size]
        divisors = [n for n in range(2, size) if size % n == 0]
        if divisors and rng.random() < 0.3:
            part = rng.choice(divisors)
            parts = [part, size // part]
        dim = []
        for part in parts:
            same = [f for f, n in enumerate(sizes) if n == part and f not in used]
            if same and rng.random() < 0.65:
                dim.append(rng.choice(same))
            else:
                sizes.append(part)
                dim.append(len(sizes) - 1)
            used.add(dim[-1])
        dims.append(tuple(dim))
    return tuple(dims)


def random_sharding(rng, rank, mesh):
    """Return a random sharding: axes and sub-axes cut dimensions, are replicated or unreduced."""
    axis_refs = []
    for axis, size in enumerate(mesh):
        before = 1
        while size > before and rng.random() < 0.3:
            part = rng.choice([n for n in range(2, size // before + 1) if size // before % n == 0])
            axis_refs.append((axis, before, part))
            before *= part
        if before == 1:
            axis_refs.append((axis, 1, size))
    rng.shuffle(axis_refs)
    axes, replicated, unreduced = [[] for _ in range(rank)], [], []
    for ref in axis_refs:
        chance = rng.random()
        if chance < 0.55 and rank:
            append(axes[rng.randrange(rank)], ref)
        elif chance < 0.65:
            replicated.append(ref)
        elif chance < 0.7:
            unreduced.append(ref)
    opened = tuple(rng.random() < 0.6 for _ in range(rank))
    parts = tuple((ref, "sum") for ref in in_order(unreduced))
    return TensorSharding(tuple(map(tuple, axes)), opened, in_order(replicated), parts)


def in_order(axis_refs):
    """Axes as Shardy sorts them where their order does not matter."""
    joined: list[tuple[int, int, int]] = []
    for ref in sorted(axis_refs):
        append(joined, ref)
    return tuple(joined)


def sharding_text(sharding, mesh, priorities=None):
    """A sharding in Shardy's notation."""

    def ref(p):
        axis, before, size = p
        return f'"a{axis}"' if size == mesh[axis] else f'"a{axis}":({before}){size}'

    levels = priorities or (0,) * len(sharding.axes)
    dims = [
        "{" + ", ".join([*map(ref, axes), *("?" * opened)]) + "}" + f"p{level}" * bool(level)
        for axes, opened, level in zip(sharding.axes, sharding.is_open, levels)
    ]
    kept = "".join(
        f", {word}={{{', '.join(map(ref, axis_refs))}}}"
        for word, axis_refs in (
            ("replicated", sharding.replicated),
            ("unreduced", [axis for axis, _ in sharding.unreduced]),
        )
        if axis_refs
    )
    return f"<@m, [{', '.join(dims)}]{kept}>"


def program_text(program):
    """The program as StableHLO: every node a custom call with its rule."""

    def kind(value):
        return "tensor<" + "".join(f"{n}x" for n in program.shapes[value]) + "f32>"

    def on(sharding, priorities=None):
        if sharding is None:
            return ""
        return (
            f" {{sdy.sharding = #sdy.sharding{sharding_text(sharding, program.mesh, priorities)}}}"
        )

    inputs = ", ".join(
        f"%v{v}: {kind(v)}{on(program.shardings[v], program.priorities.get(v))}"
        for v in range(program.inputs)
    )
    outputs = ", ".join(
        f"{kind(v)}{on(s)}" for v, s in zip(program.outputs, program.output_shardings)
    )
    axes = ", ".join(f'"a{axis}"={size}' for axis, size in enumerate(program.mesh))
    lines = [f"sdy.mesh @m = <[{axes}]>", f"func.func @main({inputs}) -> ({outputs}) {{"]
    for node in program.nodes:
        (made,) = node.results
        extra = f"sdy.sharding_rule = #sdy.op_sharding_rule<{rule_text(node.rule)}, custom>"
        if program.shardings[made] is not None:
            text = sharding_text(
                program.shardings[made], program.mesh, program.priorities.get(made)
            )
            extra += f", sdy.sharding = #sdy.sharding_per_value<[{text}]>"
        given = ", ".join(f"%v{v}" for v in node.operands)
        kinds = ", ".join(map(kind, node.operands))
        call = f"stablehlo.custom_call @foo({given}) {{{extra}}} : ({kinds}) -> {kind(made)}"
        lines.append(f"  %v{made} = {call}")
    names = ", ".join(f"%v{v}" for v in program.outputs)
    lines.append(f"  return {names} : {', '.join(map(kind, program.outputs))}")
    return "\n".join([*lines, "}"])


def rule_text(rule):
    def tensors(mappings):
        return ", ".join(
            "[" + ", ".join("".join(rule.names[f] for f in dim) for dim in mapping) + "]"
            for mapping in mappings
        )

    text = f"({tensors(rule.operands)})->({tensors(rule.results)})"
    if rule.sizes:
        sizes = ", ".join(f"{name}={size}" for name, size in zip(rule.names, rule.sizes))
        text += f" {{{sizes}}}"
    for kind, word in WORDS.items():
        found = [name for name, k in zip(rule.names, rule.kinds) if k == kind]
        text += f" {word}={{{', '.join(found)}}}" * bool(found)
    return text


@cache
def context() -> ir.Context:
    """One context for all programs: making one takes longer than a pass."""
    return mlir.make_ir_context()


def run_pass(text: str, name: str) -> str:
    """The module after one of Shardy's passes."""
    if next(RUNS) % 2000 == 0:  # a context keeps every attribute that it has seen
        context.cache_clear()
    with context():
        module = ir.Module.parse(text)
        passmanager.PassManager.parse(f"builtin.module({name})").run(module.operation)
        return str(module)


def shardy_says(program, strategy):
    """The shardings of all values and all outputs, as Shardy propagates them."""
    text = run_pass(program_text(program), PASSES[strategy])
    head = next(line for line in text.splitlines() if "func.func" in line)
    inputs, _, outputs = head.partition(") -> ")
    one = r"tensor<[^>]*>(?: \{sdy\.sharding = #sdy\.sharding(<@m, .*?>)\})?"
    values = re.findall(r"%arg\d+: " + one, inputs)
    for line in text.splitlines():
        if "custom_call" in line:
            found = re.search(r"#sdy\.sharding_per_value<\[(<@m, .*?>)\]>", line)
            values.append(found[1] if found else "")
    return values, re.findall(one, outputs)


def neighbours(nodes, count):
    """For each value the node that produces it, then those that use it, the last first."""
    result = [[] for _ in range(count)]
    for number, node in reversed(list(enumerate(nodes))):
        for value in dict.fromkeys(node.operands):
            result[value].append(number)
    for number, node in enumerate(nodes):
        for value in node.results:
            result[value].insert(0, number)
    return result


def weft_says(program, strategy):
    """The same, as the engine propagates them."""
    merge = "basic" if strategy == "basic" else "aggressive"
    engine = PropagationEngine(
        program.nodes,
        program.shardings,
        program.outputs,
        program.output_shardings,
        merge,
        neighbours(program.nodes, len(program.shapes)),
    )
    if strategy == "user_priority":
        run_by_user(engine, program.priorities, {})
    elif strategy == "op_priority":
        run_by_operator(engine)
    else:
        engine.run()

    def text(number):
        sharding = engine.interned[number]
        return "" if sharding is None else sharding_text(sharding, program.mesh)

    return list(map(text, engine.shardings)), list(map(text, engine.output_shardings))

"""Whole programs: StableHLO read, propagated by Weft and by Shardy, compared value by value."""

from collections import Counter

import pytest
from tests.plan.families import FAMILIES
from tests.plan.programs import PASSES, context, run_pass
from tests.plan.writer import Writer
from tests.trials import trials

from weft import LayoutError, ShardingSpec
from weft.interop.mlir import parse
from weft.interop.stablehlo import opaque, read
from weft.lang import OPERATORS
from weft.lang.region import EDGES
from weft.plan import propagate

PROGRAMS = trials(500)
"""For each strategy: 500 in `make test`, 25,000 in `make fuzz`."""


def program(seed, strategy):
    """A random program of 2 to 12 operations."""
    return Writer(seed, strategy == "user_priority").text(2 + seed % 11, FAMILIES)


def says_weft(text, strategy):
    """The shardings of all values by name, and of what is returned by place."""
    found = propagate(read(text), strategy)
    said = {name: str(spec) for name, spec in found.specs.items()}
    return said | {place: str(spec) for place, spec in enumerate(found.output_specs)}, found


def says_shardy(text, strategy, found):
    """The same after Shardy's pass; open everywhere where it says nothing."""
    main = parse(run_pass(text, PASSES[strategy])).functions["main"]
    said = dict(enumerate(main.returned_shardings))
    said |= {v.name: text for v, text in zip(main.arguments, main.argument_shardings)}
    for operation in main.body:
        said |= {v.name: text for v, text in zip(operation.results, operation.shardings)}
    for key, spec in (*found.specs.items(), *enumerate(found.output_specs)):
        free = f"<@m, [{', '.join(['{?}'] * spec.ndim)}]>"
        yield key, str(ShardingSpec.parse(said.get(key) or free, found.mesh))


@pytest.mark.parametrize("strategy", PASSES)
def test_shardings_are_those_of_shardy(strategy):
    refused = 0
    for seed in range(PROGRAMS):
        text = program(seed, strategy)
        ours, found = says_weft(text, strategy)
        try:
            theirs = dict(says_shardy(text, strategy, found))
        except LayoutError as error:
            if "do not nest" not in str(error):
                raise
            refused += 1
        else:
            assert ours == theirs, f"seed {seed}\n{text}"
    assert refused <= PROGRAMS // 1000


def test_parts_of_an_axis_that_do_not_nest_are_not_propagated_as_in_shardy():
    """Parts of an axis that do not nest cannot both cut a tensor; here Shardy lets them."""
    parts = ('[{?}, {"x":(4)3}]', '[{"x"}, {}]', '[{"x":(1)3}, {}]')
    arguments = ", ".join(
        f"%{name}: tensor<6x6xf32> {{sdy.sharding = #sdy.sharding<@m, {part}>}}"
        for name, part in zip("abc", parts)
    )
    text = f"""sdy.mesh @m = <["x"=12]>
        func.func @main({arguments}) -> tensor<6x6xf32> {{
            %d = stablehlo.clamp %a, %b, %c : tensor<6x6xf32>
            return %d : tensor<6x6xf32>
        }}"""
    ours, found = says_weft(text, "basic")
    assert ours["arg0"] == f"<@m, {parts[0]}>"
    assert '[{"x":(1)3, ?}, {"x":(4)3}]' in run_pass(text, PASSES["basic"])
    with pytest.raises(LayoutError, match="do not nest"):
        dict(says_shardy(text, "basic", found))


@pytest.mark.slow
def test_programs_have_every_operator():
    counts = Counter()
    for seed in range(400):
        graph = read(program(seed, "basic"))
        counts.update(application.operator for application in graph.applications)
        assert not opaque(graph)
    known = {name for name in OPERATORS if context().is_registered_operation(f"stablehlo.{name}")}
    known -= {"einsum", *EDGES, "if"}  # ours is another; regions have programs of their own
    assert len(known) > 70
    assert known | {"sharding_constraint"} == set(counts)

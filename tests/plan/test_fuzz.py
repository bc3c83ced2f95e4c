"""Hostile plans and machines are read or refused, within limits; what is read can be written."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.fuzzing import Reader, fuzz
from tests.lang.test_fuzz import mlp
from tests.mutations import mutate_bytes, mutate_json
from tests.runtime.test_programs import planned
from tests.trials import large

from weft import Machine, Plan, propagate
from weft.plan.machines import CLUSTER, H200_NODE


def _plans():
    graphs = [mlp(), *(planned(seed)[1] for seed in range(12))]
    plans = [
        Plan.of(propagate(graph), H200_NODE if place % 2 else None)
        for place, graph in enumerate(graphs)
    ]
    return [plan.to_json(indent=None).encode() for plan in plans]


def _read_plan(data):
    plan = Plan.from_json(data.decode("utf-8", "replace"))
    assert Plan.from_json(plan.to_json()) == plan
    if plan.mesh.size <= 256:
        assert plan.peak
        str(plan)


def _hostile_plans():
    plan = json.loads(Plan.of(propagate(mlp()), H200_NODE).to_json())
    long = ", ".join(f'"a{n}"=1' for n in range(5000))
    return [
        json.dumps({**plan, **fields}).encode()
        for fields in (
            {"mesh": '@m = <["dp"=2, "tp"=1000000000000]>'},
            {"mesh": '@m = <["dp"=256, "tp"=256]>'},
            {"mesh": '@m = <["dp"=1000, "tp"=1000]>'},
            {"mesh": f"@m = <[{long}]>"},
            {"mesh": f"@m = <[{long[: long.index('a4000') - 3]}]>"},
            {"outputs": plan["outputs"] * large(100_000)},
            {"placements": plan["placements"] * large(50_000)},
            {"placements": [{}] * len(plan["placements"])},
            {"placements": None},
            {"graph": None},
            {"machine": {"weft_machine": 1, "capacity": 10**400}},
            {"machine": {"weft_machine": 1, "bandwidth": 1e-320, "latency": 1e308}},
        )
    ]


PLANS = Reader(_plans, _read_plan, mutate_json, _hostile_plans)


def _machines():
    with TemporaryDirectory() as folder:
        path = Path(folder) / "machine.toml"
        found = []
        for machine in (
            Machine(),
            CLUSTER,
            H200_NODE,
            Machine(operations={"ckks": {"add": [1, 2]}}),
        ):
            machine.save(path)
            found.append(path.read_bytes())
    return found


def _read_machine(data):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "machine.toml"
        path.write_bytes(data)
        machine = Machine.load(path)
        machine.save(path)
        assert Machine.load(path) == machine


def _hostile_machines():
    dotted = ".".join(["a"] * large(100_000))
    texts = [
        f"{dotted} = 1",
        f"[{dotted}]",
        f"[[{dotted}]]",
        "\n".join(f"[{'.'.join(['a'] * 300)}.b{n}]" for n in range(large(1500))),
        "\n".join(f"{'.'.join(['a'] * 300)}.b{n} = 1" for n in range(large(1500))),
        "\n".join(f"[a{n}]" for n in range(large(100_000))),
        "\n".join(f"a.b{n}.c = 1" for n in range(large(60_000))),
        "x = " + "[" * 100_000,
        "x = " + "{a=" * 100_000,
        "x = [" + "[]," * large(300_000) + "]",
        "weft_machine = 0x" + "f" * 500_000,
        "weft_machine = " + "9" * 500_000,
        "weft_machine = 1\nlatency = 0x" + "f" * 500_000,
        "weft_machine = 1979-05-27T07:32:00Z",
        'name = """' + '\\"' * 200_000,
        "name = '''" + "'" * 200_000,
        'x = "' + "\\u0041" * 100_000 + '"',
        "#" * 1_000_000,
        "x = " + "1_" * 300_000 + "1",
        "x = 1." + "0" * 900_000,
        "weft_machine = 1\n[links]\n" + "\n".join(f"a{n} = {{}}" for n in range(large(50_000))),
    ]
    return [text.encode() for text in texts]


MACHINES = Reader(_machines, _read_machine, mutate_bytes, _hostile_machines)


PLAN = Plan.of(propagate(mlp())).to_json()


def _machine_tables():
    tables = [machine.to_data() for machine in (Machine(), CLUSTER, H200_NODE)]
    return [json.dumps(table).replace("Infinity", '"inf"').encode() for table in tables]


def _read_table(data):
    plan = json.dumps({**json.loads(PLAN), "machine": "a table"})
    Plan.from_json(plan.replace('"a table"', data.decode("utf-8", "replace")))


TABLES = Reader(_machine_tables, _read_table, mutate_json)


def test_hostile_plans_are_read_or_refused():
    fuzz("tests.plan.test_fuzz:PLANS")


def test_hostile_machine_files_are_read_or_refused():
    fuzz("tests.plan.test_fuzz:MACHINES")


def test_hostile_machines_of_plans_are_read_or_refused():
    fuzz("tests.plan.test_fuzz:TABLES")

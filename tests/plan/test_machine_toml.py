"""Machines in TOML files: save and load, presets, and errors that name the field."""

import tomllib
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import DeviceMesh, Machine, ShardingSpec, WeftError, plan_reshard
from weft.lang.graph_json import DTYPES
from weft.plan.machines import CHIPS_2X4, CLUSTER, H200_NODE, find_machine, memory, this_host

NAMES = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1).filter(
    str.isprintable
)
RATES = st.floats(min_value=1e-300) | st.integers(1, 10**30)
LATENCIES = st.floats(0, 1e300) | st.just(0)
LINKS = st.tuples(LATENCIES, RATES) | st.tuples(LATENCIES, RATES, st.booleans())
MACHINES = st.builds(
    Machine,
    st.dictionaries(NAMES, LINKS, max_size=3),
    LATENCIES,
    RATES,
    shared=st.booleans(),
    flops=st.dictionaries(st.sampled_from(DTYPES), RATES, max_size=3),
    memory_bandwidth=RATES,
    capacity=RATES,
    overlap=st.floats(0, 1),
    storage=LINKS,
    name=st.just("") | NAMES,
    operations=st.dictionaries(
        NAMES, st.dictionaries(NAMES, st.lists(LATENCIES, max_size=3), max_size=2), max_size=2
    ),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("machines") / "machine.toml"


@given(machine=MACHINES)
def test_save_and_load(path, machine):
    machine.save(path)
    assert Machine.load(path) == machine
    assert Machine.load(str(path)) == machine


def test_names_with_special_characters_are_quoted(path):
    odd = Machine({'a "b" \\ c.d': (0, 1), "é": (1, 2, True), "x": (0, inf)}, name='"[x]\\')
    odd.save(path)
    assert list(tomllib.loads(path.read_text("utf-8"))["links"]) == list(odd.links)
    assert Machine.load(path) == odd


@pytest.mark.parametrize("machine", [H200_NODE, CLUSTER, CHIPS_2X4, this_host(), Machine()])
def test_presets_are_saved_and_loaded(path, machine):
    machine.save(path)
    assert Machine.load(path) == machine


def test_only_a_given_storage_link_is_written(path):
    Machine().save(path)
    assert "storage" not in path.read_text(encoding="utf-8")
    Machine(storage=(1e-3, 2e9, True)).save(path)
    assert "[storage]" in path.read_text(encoding="utf-8")
    assert Machine.load(path).storage == (1e-3, 2e9, True)


def test_missing_fields_have_defaults(path):
    path.write_text("weft_machine = 1\n", encoding="utf-8")
    assert Machine.load(path) == Machine()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "weft_machine: expected the version 1, got None"),
        ("weft_machine = 2", "weft_machine: expected the version 1, got 2"),
        ("speed = 1", "speed: unknown field"),
        ("latency = -1", "latency: expected seconds, 0 or more, got -1"),
        ("latency = inf", "latency: expected seconds, 0 or more, got inf"),
        ("latency = nan", "latency: expected seconds, 0 or more, got nan"),
        ("bandwidth = 0", "bandwidth: expected a number above 0, got 0"),
        ('bandwidth = "fast"', "bandwidth: expected a number, got 'fast'"),
        ("bandwidth = true", "bandwidth: expected a number, got True"),
        ("capacity = nan", "capacity: expected a number above 0, got nan"),
        ("capacity = 2020-01-01", r"capacity: expected a number, got datetime.date\(2020, 1, 1\)"),
        (f"capacity = 1{'0' * 400}", "capacity: expected a number that fits a float, got 1000"),
        ("overlap = 1.5", "overlap: expected a fraction from 0 to 1, got 1.5"),
        ("shared = 1", "shared: expected true or false, got 1"),
        ("name = 1", "name: expected printable text, got 1"),
        ("name = false", "name: expected printable text, got False"),
        ("flops = 1", "flops: expected a mapping by name, got 1"),
        ("flops.float33 = 1", "flops.float33: there is no such dtype"),
        ("flops.float32 = 0", "flops.float32: expected a number above 0, got 0"),
        ("[flops]\n'x.float32' = 1", r"flops\.x\.float32: there is no such dtype"),
        ("links.x = 1", "links.x: expected an object, got 1"),
        ("links.x.bandwidth = 1", "links.x.latency: expected a number, got None"),
        ("links.x.latency = 1", "links.x.bandwidth: expected a number, got None"),
        ("links.x.speed = 1", "links.x.speed: unknown field"),
        (
            "links.x = {latency = 0, bandwidth = -1}",
            "links.x.bandwidth: expected a number above 0, got -1",
        ),
        (
            "links.x = {latency = 0, bandwidth = 1, shared = 0}",
            "links.x.shared: expected true or false, got 0",
        ),
        ("storage = 1", "storage: expected an object, got 1"),
        ("storage.latency = 1", "storage.bandwidth: expected a number, got None"),
        ("storage.speed = 1", "storage.speed: unknown field"),
        ("operations = 1", "operations: expected a mapping by name, got 1"),
        ("operations.a.b = 1", "operations.a.b: expected a list of seconds, got 1"),
        ("operations.a.b = [-1]", r"operations.a.b\[0\]: expected seconds, 0 or more, got -1"),
        ("operations.a.b = [inf]", r"operations.a.b\[0\]: expected seconds, 0 or more, got inf"),
        ('name = "a\\nb"', r"name: expected printable text"),
        ("links = [", "is not TOML: "),
        ("x = " + "[" * 100_000, "is not TOML: "),
    ],
)
def test_invalid_machine_files_are_refused(path, text, message):
    head = "" if text.startswith("weft") or not text else "weft_machine = 1\n"
    path.write_text(head + text, encoding="utf-8")
    with pytest.raises(WeftError, match=message):
        Machine.load(path)


def test_invalid_utf8_and_long_files(path):
    path.write_bytes(b"name = '\xff'")
    with pytest.raises(WeftError, match="is not text: 'utf-8' codec"):
        Machine.load(path)
    path.write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(WeftError, match="has more than 1048576 B"):
        Machine.load(path)


def test_the_error_names_the_file(path):
    path.write_text("weft_machine = 1\nlatency = -1", encoding="utf-8")
    with pytest.raises(WeftError) as refused:
        Machine.load(path)
    assert f"while reading {path}" in refused.value.__notes__


def test_presets_by_name(path):
    Machine(name="mine").save(path)
    assert find_machine("cluster") is CLUSTER
    assert find_machine(str(path)).name == "mine"
    assert find_machine("host") == this_host()
    with pytest.raises(WeftError, match="there is no machine fast") as refused:
        find_machine("fast")
    assert (
        "hint: give a TOML or JSON file, or one of h200, cluster, chips, host"
        in refused.value.__notes__
    )


def test_this_host_is_divided_among_its_cells():
    one, four = this_host(1), this_host(4)
    assert one.flops["float32"] == pytest.approx(4 * four.flops["float32"])
    assert one.capacity == memory() == pytest.approx(4 * four.capacity)
    assert one.name == "this host, 1 cell"


def test_the_cluster_keeps_traffic_off_its_network():
    mesh = DeviceMesh("m", (2, 8), ("node", "device"))
    src = ShardingSpec.parse('<@m, [{}, {}], unreduced={"node", "device"}>', mesh)
    plan = plan_reshard(src, ShardingSpec(mesh, src.dim_specs), (4096, 4096), 4, CLUSTER)
    assert [step.axes for step in plan.steps] == [("device",), ("node",), ("node",), ("device",)]


@pytest.mark.parametrize("text", ["{} = 1", "[{}]", "[[{}]]", "x = {{{} = 1}}"])
@pytest.mark.parametrize("joint", [".", " . ", '."b".', ".'c'."])
def test_a_key_of_many_names_is_refused(tmp_path, text, joint):
    path = tmp_path / "machine.toml"
    path.write_text(text.format(joint.join(["a"] * 50_000)), encoding="utf-8")
    with pytest.raises(WeftError, match=r"machine\.toml has a key of more than 16 names"):
        Machine.load(path)


def test_a_long_row_of_numbers_is_not_a_long_key(tmp_path):
    path, row = tmp_path / "machine.toml", [0.25 * n for n in range(1, 200)]
    Machine(operations={"ckks": {"rotation": row}}).save(path)
    assert Machine.load(path).operations["ckks"]["rotation"] == tuple(row)

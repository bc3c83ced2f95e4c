"""Machines out of records: rates, links and rows come back; some records say too little."""

import random

import pytest
from tests.runtime.cluster.metrics import MESH, made_up, recorded, task

from weft import DeviceMesh, Machine, WeftError, estimate, ops, search, trace
from weft.plan import CellGroup
from weft.plan.machine import seconds_in
from weft.runtime.cluster.metrics.amount import Amount, seconds_by
from weft.runtime.cluster.metrics.calibration import calibrate, fitted, row_of
from weft.runtime.cluster.metrics.record import RunRecord
from weft.values import FrozenMap


def computed(count=5, rate=2e9, operator="matmul", dtype="float32", first=0, **said):
    """Tasks of one operator at a rate, of growing size."""
    return [
        task(
            first + n,
            operator=operator,
            dtype=dtype,
            flops=(flops := 1_000_000 * (n + 1)),
            seconds=flops / rate,
            cpu=flops / rate,
            **said,
        )
        for n in range(count)
    ]


def test_rates_by_dtype_are_those_of_the_best_operator():
    tasks = [
        *computed(rate=2e9),
        *computed(rate=3e8, operator="relu", first=10),
        *computed(rate=1e9, dtype="float64", first=20, operator="solve"),
        *computed(count=2, dtype="int8", first=30, operator="pack"),
    ]
    found = calibrate(made_up(*tasks))
    assert found.machine.flops == {"float32": 2e9, "float64": 1e9}
    assert found.tasks == {"float32": 10, "float64": 5, "memory": 17}


def test_one_slow_task_and_many_small_ones_change_nothing():
    slow = task(50, flops=5_000_000, seconds=1.0, cpu=1.0)
    small = [task(60 + n, flops=10, seconds=1e-5, cpu=1e-5) for n in range(40)]
    found = calibrate(made_up(*computed(count=8), slow, *small))
    assert found.machine.flops["float32"] == pytest.approx(2e9)


def test_a_worker_that_is_kept_waiting_is_no_slower_machine():
    waited = [one._replace(seconds=one.seconds * 5) for one in computed()]
    assert calibrate(made_up(*waited)).machine.flops["float32"] == 2e9


def test_several_processors_count_by_the_clock_and_so_does_what_was_not_measured():
    for factor in (4, 0):
        several = [one._replace(cpu=one.cpu * factor) for one in computed()]
        assert calibrate(made_up(*several)).machine.flops["float32"] == 2e9


def test_waiting_for_bytes_is_no_computing():
    tasks = [
        one._replace(seconds=one.seconds + 0.6, receiving=0.1, reading=0.2, writing=0.3, cpu=0.0)
        for one in computed()
    ]
    assert calibrate(made_up(*tasks)).machine.flops["float32"] == pytest.approx(2e9)


def test_memory_is_what_the_best_operator_goes_through():
    tasks = [
        *computed(touched=1000),
        *computed(rate=1e8, operator="copy", touched=40_000_000, first=10),
    ]
    middle = 40_000_000 / (3_000_000 / 1e8)
    assert calibrate(made_up(*tasks)).machine.memory_bandwidth == pytest.approx(middle, rel=1e-5)


def test_links_are_lines_and_what_lies_far_off_is_left_out():
    rng = random.Random(0)
    tasks = []
    for n in range(40):
        size = rng.choice([100, 10_000, 1_000_000, 50_000_000])
        taken = (2e-4 + size / 4e9) * rng.uniform(0.97, 1.03) * (30 if n == 7 else 1)
        tasks.append(task(n, received={3: size}, receiving=taken, seconds=taken + 0.5, cpu=0.5))
    found = calibrate(made_up(*tasks))
    assert found.machine.latency == pytest.approx(2e-4, rel=0.1)
    assert found.machine.bandwidth == pytest.approx(4e9, rel=0.1)
    assert 30 <= found.tasks["links"] < 40
    assert not found.machine.links


def test_axes_have_links_of_their_own():
    tasks = [
        task(n, received={cell: size}, receiving=size / rate, cell=0)
        for n, (cell, rate, size) in enumerate(
            (cell, rate, size)
            for cell, rate in ((1, 4e9), (2, 1e9))
            for size in (10_000, 20_000, 40_000)
        )
    ]
    base = Machine({"x": (1.0, 1.0, True)}, shared=True)
    machine = calibrate(made_up(*tasks, machine=base)).machine
    assert machine.link("y").bandwidth == pytest.approx(4e9)
    assert machine.link("x").bandwidth == pytest.approx(1e9)
    assert (machine.link("x").shared, machine.link("y").shared) == (True, True)
    strange = [one._replace(received={99: 10_000}) for one in tasks]
    assert not calibrate(made_up(*strange)).machine.links


def test_storage_is_a_link_too():
    tasks = [
        one._replace(
            seconds=one.seconds + 0.01,
            read=1000 * n,
            reading=1e-3 + 1e-6 * n,
            written=500 * n,
            writing=1e-3 + 5e-7 * n,
        )
        for n, one in enumerate(computed(), start=1)
    ]
    found = calibrate(made_up(*tasks))
    assert found.machine.storage.latency == pytest.approx(1e-3, rel=1e-3)
    assert found.machine.storage.bandwidth == pytest.approx(1e9, rel=1e-3)
    assert found.tasks["storage"] == 10
    base = Machine(storage=(1.0, 2.0, True))
    assert calibrate(made_up(*computed(), machine=base)).machine.storage == base.storage
    assert calibrate(made_up(*tasks, machine=base)).machine.storage.shared


def test_sizes_that_are_alike_give_bytes_in_a_second():
    assert fitted([(1000, 1e-6)] * 3) == (0.0, 1e9, 3)
    falling = [(1000, 3e-6), (2000, 2e-6), (3000, 1e-6)]
    line = fitted(falling)
    assert line.latency == 0
    assert line.bandwidth > 0


def test_rows_give_back_what_was_measured():
    points = [(1_000_000, 0.01), (3_000_000, 0.02), (50_000_000, 0.5)]
    row = tuple(row_of(points))
    for flops, seconds in points:
        assert seconds_in(row, flops) == pytest.approx(seconds, rel=0.2)
    assert seconds_in(row, 100_000_000) == pytest.approx(1.0, rel=0.2)
    assert seconds_in(tuple(row_of(points[:1])), 1_000_000) == pytest.approx(0.01, rel=1e-5)
    tasks = computed(count=4)
    rows = calibrate(made_up(*tasks)).machine.operations["grid"]
    assert seconds_in(rows["matmul"], 2_000_000) == pytest.approx(1e-3, rel=0.05)
    few = computed(count=2, operator="rare", first=10)
    assert "rare" not in calibrate(made_up(*tasks, *few)).machine.operations["grid"]


def test_rates_that_a_run_does_not_measure_are_kept():
    base = Machine(
        {"y": (1e-3, 7.0)},
        latency=1e-5,
        bandwidth=5.0,
        capacity=9.0,
        overlap=0.5,
        flops={"float64": 3.0},
        operations={"ckks-8192": {"rotation": [1.0]}, "grid": {"solve": [1.0]}},
    )
    machine = calibrate(made_up(*computed(), machine=base)).machine
    assert (machine.latency, machine.bandwidth, machine.capacity) == (1e-5, 5.0, 9.0)
    assert (machine.overlap, machine.links, machine.flops["float64"]) == (0.5, base.links, 3.0)
    assert machine.operations["ckks-8192"] == base.operations["ckks-8192"]
    assert set(machine.operations["grid"]) == {"solve", "matmul"}
    assert machine.name == "ray, 2 workers"


def test_a_run_predicts_itself():
    tasks = computed(count=9, rate=3e9)
    machine = calibrate(made_up(*tasks, *computed(rate=1e8, operator="relu", first=20))).machine
    for one in tasks:
        amount = Amount(one.flops, one.dtype, one.touched)
        predicted = seconds_by(machine, MESH, one.operator, amount, {}, 0)
        assert predicted == pytest.approx(one.seconds, rel=1e-4)


def test_the_machine_of_a_measured_run_is_saved_and_loaded(tmp_path):
    machine = calibrate(recorded()).machine
    path = tmp_path / "machine.toml"
    machine.save(path)
    assert Machine.load(path) == machine
    assert all(one.predicted is not None for one in recorded(machine).tasks)


@pytest.mark.parametrize(
    ("record", "told"),
    [
        (made_up(), "none"),
        (made_up(task(0, flops=0, dtype="")), "none"),
        (made_up(task(0), task(1)), "2 in float32"),
        (made_up(task(0), task(1), task(2, dtype="int8")), "2 in float32, 1 in int8"),
        (made_up(*(task(n, seconds=0.0, cpu=0.0) for n in range(9))), "none"),
    ],
)
def test_a_record_that_says_too_little(record, told):
    with pytest.raises(WeftError) as caught:
        calibrate(record)
    assert str(caught.value) == (
        f"too few tasks to estimate a machine: {told}; 3 in one dtype are needed"
    )
    assert caught.value.__notes__ == ["hint: record a longer run, or one with more tasks"]


# What was measured reaches the planner.


def test_a_cell_that_is_slower_than_most_is_a_group_of_its_own():
    tasks = [
        one._replace(number=4 * n + cell, cell=cell, seconds=one.seconds * (4 if cell == 2 else 1))
        for cell in range(4)
        for n, one in enumerate(computed(count=6))
    ]
    base = Machine(cells=[CellGroup(devices=[0], speed=9, capacity=5.0)])
    machine = calibrate(made_up(*tasks, machine=base)).machine
    assert machine.cells == (
        CellGroup(devices=[0], capacity=5.0),
        CellGroup(devices=[2], speed=0.25),
    )
    assert machine.measured["cells.1"] == 5  # one is too small to be compared
    rows = machine.operations["grid"]
    assert seconds_in(rows["matmul"], 6_000_000) == pytest.approx(3e-3, rel=0.05)
    assert calibrate(made_up(*computed(count=8))).machine.cells == ()


def test_the_seconds_of_a_task_are_divided_among_its_operators():
    work = FrozenMap({"matmul": (3_000_000, 10), "relu": (1000, 4000)}.items())
    tasks = [
        *computed(count=3),
        *computed(count=3, rate=5e6, operator="copy", touched=1_000_000, first=10),
        *(task(20 + n, operator="matmul + relu", work=work, seconds=3.0) for n in range(3)),
    ]
    found = calibrate(made_up(*tasks)).machine
    rows = found.operations["grid"]
    parts = dict.fromkeys(work, found.flops["float32"])
    weights = [
        3_000_000 / parts["matmul"],
        max(1000 / parts["relu"], 4000 / found.memory_bandwidth),
    ]
    assert seconds_in(rows["relu"], 1000) == pytest.approx(3 * weights[1] / sum(weights), rel=0.05)
    assert seconds_in(rows["matmul + relu"], 1_000_000) == pytest.approx(3.0, rel=0.05)
    assert found.measured["operations.grid.relu"] == 3
    parts = Machine(operations={"grid": {"relu": [5.0]}}, flops={"float32": 1e6})
    amount = Amount(3_001_000, "float32", 4010)
    predicted = seconds_by(parts, MESH, "matmul + relu", amount, {}, 0, work)
    assert predicted == pytest.approx(5.0 * 1000 + 3.0)
    again = RunRecord.from_json(made_up(*tasks).to_json())
    assert again.tasks[-1].work == work


def test_a_calibrated_machine_changes_estimate_and_search():
    """An operator that was measured to be slow is cut, even if it has to be moved for that."""
    mesh = DeviceMesh("m", (2,), ("x",))
    graph = trace(ops.exp, (64, 64), names=["x"], meshes=[mesh], shardings={"x": "<@m, [{}, {}]>"})
    slow = [
        one._replace(cell=n % 2)
        for n, one in enumerate(
            computed(rate=1e3, operator=graph.applications[0].operator, count=6)
        )
    ]
    base = Machine(latency=1e-3, bandwidth=1e6, flops={"float32": 1e9})
    measured = calibrate(made_up(*slow, *computed(first=10), machine=base)).machine
    plan = search(graph, mesh, measured, objectives=["time"], rewrite=False)[0]
    assert plan.placed[0].cuts
    flops = 64 * 64 // 2
    assert estimate(plan, measured).compute == pytest.approx(flops / 1e3, rel=0.05)
    assert estimate(plan, base).compute < 1e-3
    fused = trace(lambda x: ops.exp(x) + x, (64, 64))
    before = search(fused, mesh, measured, objectives=["time"], engine="exact", rewrite=False)
    assert before.costs[0].compute == pytest.approx(flops / 1e3, rel=0.05)

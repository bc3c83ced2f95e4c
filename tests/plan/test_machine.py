"""Machines: links by axis, rates, and invalid values."""

import pickle

import pytest

from weft import Machine, WeftError


def test_links_by_axis_and_the_rest():
    machine = Machine({"node": (5e-6, 25e9)}, 1e-6, 4e11, flops={"float32": 67e12}, capacity=141e9)
    assert machine.link("node") == (5e-6, 25e9, False)
    assert machine.link("gpu") == machine.rest == (1e-6, 4e11, False)
    assert machine.flops["float32"] == 67e12
    assert (machine.capacity, machine.overlap) == (141e9, 0)


def test_default_machine_counts_bytes():
    assert Machine().rest == (0, 1e9, False)


def test_links_that_are_shared():
    machine = Machine({"host": (5e-6, 25e9, True)}, shared=True)
    assert machine.link("host").shared
    assert machine.rest.shared
    assert machine != Machine({"host": (5e-6, 25e9)}, shared=True)
    assert machine != Machine({"host": (5e-6, 25e9, True)})


def test_rate_of_an_unnamed_dtype():
    machine = Machine(flops={"int8": 8, "float32": 4, "float64": 2})
    assert [machine.rate(d) for d in ("int8", "bool", "bfloat16", "uint32", "int64")] == [
        *(8, 8, 4, 4, 2)
    ]
    assert machine.rate("complex128") == 2
    assert Machine().rate("float32") == float("inf")


def test_equal_machines_are_equal_values():
    one = Machine({"a": (0, 1e9), "b": (1, 2)})
    two = Machine({"b": (1, 2), "a": (0, 1e9)})
    assert one == two
    assert hash(one) == hash(two)
    assert pickle.loads(pickle.dumps(one)) == one
    assert one != Machine({"a": (0, 1e9)})
    assert Machine(name="a") != Machine(name="b")


def test_measured_operations():
    machine = Machine(operations={"ckks": {"rotation": [1, 2.5]}, "nothing": {}})
    assert machine.operations == {"ckks": {"rotation": (1.0, 2.5)}}
    assert hash(machine.operations) is not None
    assert machine != Machine()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Machine({"x": (-1, 1)}), "links.x.latency: expected seconds, 0 or more, got -1"),
        (lambda: Machine({"x": (0, 0)}), "links.x.bandwidth: expected a number above 0, got 0"),
        (
            lambda: Machine({"x": (0,)}),
            r"links.x: expected \(seconds, bytes per second\), .*, got \(0,\)",
        ),
        (lambda: Machine({"x": ("a", 1)}), "links.x.latency: expected a number, got 'a'"),
        (lambda: Machine([("x", (0, 1))]), "links: expected a mapping by name"),
        (lambda: Machine(bandwidth=float("nan")), "bandwidth: expected a number above 0, got nan"),
        (lambda: Machine(latency=float("inf")), "latency: expected seconds, 0 or more, got inf"),
        (lambda: Machine(overlap=2), "overlap: expected a fraction from 0 to 1, got 2"),
        (lambda: Machine(flops={"float32": 0}), "flops.float32: expected a number above 0, got 0"),
        (lambda: Machine({"x": (0, 1, 2)}), r"links.x: expected .* got \(0, 1, 2\)"),
        (lambda: Machine({"x\n": (0, 1)}), r"links: the name 'x\\n' is not printable"),
        (lambda: Machine(flops={"flot32": 1}), "flops.flot32: there is no such dtype"),
        (lambda: Machine(name="a\nb"), r"name: expected printable text, got 'a\\nb'"),
        (lambda: Machine(name=3), "name: expected printable text, got 3"),
        (lambda: Machine(capacity=-1), "capacity: expected a number above 0, got -1"),
        (lambda: Machine(storage=3), r"storage: expected \(seconds, .* got 3"),
        (lambda: Machine(storage=(0, 0)), "storage.bandwidth: expected a number above 0, got 0"),
        (lambda: Machine(operations=3), "operations: expected a mapping by name, got 3"),
        (
            lambda: Machine(operations={"ckks": [1]}),
            r"operations.ckks: expected a mapping by name, got \[1\]",
        ),
        (
            lambda: Machine(operations={"ckks": {"rotation": 1}}),
            "operations.ckks.rotation: expected a list of seconds, got 1",
        ),
        (
            lambda: Machine(operations={"ckks": {"rotation": ["a"]}}),
            r"operations.ckks.rotation\[0\]: expected a number, got 'a'",
        ),
        (
            lambda: Machine(operations={"ckks": {"rotation": [1, -1]}}),
            r"operations.ckks.rotation\[1\]: expected seconds, 0 or more, got -1",
        ),
    ],
)
def test_invalid_machines_are_refused(make, message):
    with pytest.raises(WeftError, match=message):
        make()

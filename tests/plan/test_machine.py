"""Machines: links by axis, a default for the rest, and what is refused."""

import pickle

import pytest

from weft import Machine, WeftError


def test_links_by_axis_and_the_rest():
    machine = Machine({"node": (5e-6, 25e9)}, 1e-6, 4e11, flops={"float32": 67e12}, capacity=141e9)
    assert machine.link("node") == (5e-6, 25e9, False)
    assert machine.link("gpu") == machine.rest == (1e-6, 4e11, False)
    assert machine.flops["float32"] == 67e12
    assert (machine.capacity, machine.overlap) == (141e9, 0)


def test_a_plain_machine_counts_bytes():
    assert Machine().rest == (0, 1e9, False)


def test_links_that_are_shared():
    machine = Machine({"host": (5e-6, 25e9, True)}, shared=True)
    assert machine.link("host").shared
    assert machine.rest.shared
    assert machine != Machine({"host": (5e-6, 25e9)}, shared=True)
    assert machine != Machine({"host": (5e-6, 25e9, True)})


def test_a_dtype_that_is_not_named_is_no_faster_than_a_wider_one():
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


def test_operations_that_were_measured():
    machine = Machine(operations={"ckks": {"rotation": [1, 2.5]}, "nothing": {}})
    assert machine.operations == {"ckks": {"rotation": (1.0, 2.5)}}
    assert hash(machine.operations) is not None
    assert machine != Machine()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Machine({"x": (-1, 1)}), 'latency of axis "x" is -1.0 s; it must be finite, 0 or'),
        (lambda: Machine({"x": (0, 0)}), 'bandwidth of axis "x" is 0.0; it must be above 0'),
        (
            lambda: Machine({"x": (0,)}),
            r'the link of axis "x" is latency and bandwidth, got \(0,\)',
        ),
        (lambda: Machine({"x": ("a", 1)}), "latency of axis \"x\" must be a number: 'a'"),
        (lambda: Machine([("x", (0, 1))]), "links of a machine must be a mapping by name"),
        (lambda: Machine(bandwidth=float("nan")), "bandwidth of the machine is nan"),
        (lambda: Machine(latency=float("inf")), "latency of the machine is inf s"),
        (lambda: Machine(overlap=2), "overlap of the machine is 2.0; it is a part, from 0 to 1"),
        (lambda: Machine(flops={"float32": 0}), "flops of float32 is 0.0; it must be above 0"),
        (lambda: Machine({"x": (0, 1, 2)}), r"latency and bandwidth, got \(0, 1, 2\)"),
        (lambda: Machine({"x\n": (0, 1)}), r"links of a machine: 'x\\n' cannot be a name, it is"),
        (lambda: Machine(flops={"flot32": 1}), "flops of flot32: there is no such dtype"),
        (lambda: Machine(name="a\nb"), r"the name of a machine is a printable text, got 'a\\nb'"),
        (lambda: Machine(name=3), "the name of a machine is a printable text, got 3"),
        (lambda: Machine(capacity=-1), "capacity is -1.0; it must be above 0"),
        (lambda: Machine(storage=3), "the link of storage is latency and bandwidth, got 3"),
        (lambda: Machine(storage=(0, 0)), "bandwidth of storage is 0.0; it must be above 0"),
        (lambda: Machine(operations=3), "operations of a machine must be a mapping by name: 3"),
        (
            lambda: Machine(operations={"ckks": [1]}),
            r"operations.ckks of a machine must be a mapping by name: \[1\]",
        ),
        (
            lambda: Machine(operations={"ckks": {"rotation": 1}}),
            "rotation of ckks is a row of seconds, got 1",
        ),
        (
            lambda: Machine(operations={"ckks": {"rotation": ["a"]}}),
            "rotation of ckks must be a number: 'a'",
        ),
        (
            lambda: Machine(operations={"ckks": {"rotation": [1, -1]}}),
            "rotation of ckks has -1.0 s; they must be finite, 0 or more",
        ),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(WeftError, match=message):
        make()

"""Machines: links by axis, a default for the rest, and what is refused."""

import pickle

import pytest

from weft import Machine, WeftError


def test_links_by_axis_and_the_rest():
    machine = Machine({"node": (5e-6, 25e9)}, 1e-6, 4e11, flops={"float32": 67e12}, capacity=141e9)
    assert machine.link("node") == (5e-6, 25e9)
    assert machine.link("gpu") == machine.rest == (1e-6, 4e11)
    assert machine.flops["float32"] == 67e12
    assert (machine.capacity, machine.overlap) == (141e9, 0)


def test_a_plain_machine_counts_bytes():
    assert Machine().rest == (0, 1e9)


def test_equal_machines_are_equal_values():
    one = Machine({"a": (0, 1e9), "b": (1, 2)})
    two = Machine({"b": (1, 2), "a": (0, 1e9)})
    assert one == two
    assert hash(one) == hash(two)
    assert pickle.loads(pickle.dumps(one)) == one
    assert one != Machine({"a": (0, 1e9)})


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
        (lambda: Machine(capacity=-1), "capacity is -1.0; it must be above 0"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(WeftError, match=message):
        make()

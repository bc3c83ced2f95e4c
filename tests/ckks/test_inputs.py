"""Encrypted inputs: stated or unambiguous, on the first line of every plan, otherwise refused."""

import numpy as np
import pytest

from weft import DeviceMesh, WeftError, ckks
from weft.ckks.network import Network
from weft.ckks.plan import LISTED, Range
from weft.lang import ops, trace
from weft.lang.fusion import fuse
from weft.lang.graph_json import from_json, to_json
from weft.lang.rewrite import rewrites_of
from weft.plan.searching.build import on_mesh

torch = pytest.importorskip("torch")

from weft.interop.export import from_torch  # noqa: E402


def layer(**more):
    return trace(lambda w, x: ops.linear(x, w), (8, 8), (1, 8), **more)


def refused(*args, **more):
    with pytest.raises(WeftError) as caught:
        ckks.plan(*args, **more)
    return [str(caught.value), *getattr(caught.value, "__notes__", ())]


def test_the_only_input_that_is_not_a_parameter_is_encrypted():
    planned = ckks.plan(layer(parameters=["w"]), 64)
    assert (planned.encrypted, planned.clear) == (("x",), ("w",))


def test_the_weights_of_a_torch_module_are_parameters_and_never_the_default():
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)).eval()
    graph = from_torch(module, torch.zeros(1, 8))
    assert graph.inputs[0].name == "0.weight"
    assert graph.parameters == ("0.weight", "0.bias", "1.weight", "1.bias")
    planned = ckks.plan(graph, 64)
    assert planned.encrypted == ("input",)
    assert str(planned).splitlines()[0] == (
        "encrypted: input in [-1, 1] (the default range); in the clear: the 4 parameters "
        "0.weight, 0.bias, 1.weight, 1.bias"
    )


def test_buffers_are_parameters():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.full((8,), 0.5))

        def forward(self, x):
            return x * self.scale

    assert ckks.plan(from_torch(Scaled(), torch.zeros(1, 8)), 64).encrypted == ("x",)


def test_arrays_that_a_traced_function_captures_are_parameters():
    w = np.ones((8, 8))
    graph = trace(lambda x: ops.linear(x, w), (1, 8))
    assert graph.parameters == ("input",)
    assert ckks.plan(graph, 64).encrypted == ("x",)


def test_several_inputs_that_could_be_meant_are_refused_with_their_names():
    message, hint = refused(layer(), 64)
    assert message == "which input is encrypted? 2 are not known to be parameters: w, x"
    assert hint.startswith('hint: state it: encrypted=["w"]; or declare the parameters')
    with pytest.raises(WeftError, match="which input is encrypted"):
        Network.of(layer())


def test_parameters_alone_are_refused():
    message, hint = refused(layer(parameters=["x", "w"]), 64)
    assert message == "which input is encrypted? all are parameters: w, x"
    assert hint == 'hint: state it: encrypted=["w"]'


def test_a_stated_input_is_encrypted_even_if_it_is_a_parameter():
    planned = ckks.plan(layer(parameters=["w"]), 64, "w")
    assert planned.headline == "encrypted: w in [-1, 1] (the default range); in the clear: x"
    both = trace(lambda image, mask: image * mask, (1, 8), (1, 8))
    assert ckks.plan(both, 64, ["image", "mask"], ranges=2).headline == (
        "encrypted: image in [-2, 2], mask in [-2, 2]; in the clear: nothing"
    )


def test_stated_inputs_must_exist():
    message, hint = refused(layer(), 64, ["y"])
    assert (message, hint) == ("there is no input y to encrypt", "hint: inputs: ['w', 'x']")
    assert refused(layer(), 64, [])[0] == "no input is stated to be encrypted"


def test_the_first_line_names_inputs_in_the_clear_and_counts_many_parameters():
    count = LISTED + 3
    names = [f"w{n}" for n in range(count)]

    def chain(x, mask, *weights):
        for w in weights:
            x = x + w
        return x * mask

    graph = trace(chain, *[(1, 8)] * (count + 2), names=["x", "mask", *names], parameters=names)
    line = str(ckks.plan(graph, 64, "x", ranges=(0, 1))).splitlines()[0]
    assert line.startswith("encrypted: x in [0, 1]; in the clear: mask, and the 11 parameters w0, ")
    assert line.endswith("w7 and 3 more")


def test_ranges_by_name_as_pairs_and_as_numbers():
    both = trace(lambda image, mask: image * mask, (1, 8), (1, 8))
    planned = ckks.plan(both, 64, ["image", "mask"], ranges={"image": (0, 255)})
    assert planned.ranges == {"image": Range(0, 255), "mask": Range(-1, 1)}
    assert "(the default range)" in planned.headline
    assert refused(both, 64, ["image"], ranges={"mask": 1})[0] == (
        "a range is declared for mask, which is not encrypted"
    )
    for wrong in (np.inf, -1, (2, 1), (1, 2, 3), "abc", (0, np.nan)):
        assert refused(both, 64, ["image"], ranges={"image": wrong})[0].startswith(
            "the range of image is "
        )


def test_values_outside_the_declared_range_are_refused_before_anything_is_encrypted():
    planned = ckks.plan(layer(parameters=["w"]), 64)
    backend = ckks.Simulator(planned.parameters(security=None))
    x = np.zeros((1, 8))
    x[0, 3] = 1.5
    with pytest.raises(WeftError) as caught:
        ckks.run(planned, {"w": np.eye(8), "x": x}, backend)
    assert str(caught.value) == "input x: the value 1.5 is outside of its declared range [-1, 1]"
    assert caught.value.__notes__ == [
        'hint: 1 of 8 values are outside; scale the input, or plan with ranges={"x": (-1, 1.5)}'
    ]
    x[0, 3] = np.nan
    with pytest.raises(WeftError, match="input x: values must be finite numbers"):
        ckks.run(planned, {"w": np.eye(8), "x": x}, backend)
    assert not backend.counters.encryptions


@pytest.mark.parametrize("slots", [1000, 3 << 10, 100])
def test_slots_that_are_not_a_power_of_two_are_refused_with_a_hint(slots):
    below = 1 << (slots.bit_length() - 1)
    message, hint = refused(layer(parameters=["w"]), slots)
    assert message == f"slots={slots} is not a power of two: a ring N has N/2 slots"
    assert hint == f"hint: slots={below} or slots={2 * below} would fit"


def test_slots_that_no_ring_has_are_refused():
    message, hint = refused(layer(parameters=["w"]), 1 << 17)
    assert message == "slots=131072 is more than the 65536 slots of the largest ring, N=131072"
    assert hint == "hint: slots=65536 or less: larger tensors take several ciphertexts"
    assert refused(layer(parameters=["w"]), 0)[0].startswith("slots=0 is less than the 4 slots")
    assert refused(layer(parameters=["w"]), -4)[0] == "slots is -4; it cannot be negative"


def test_integers_are_refused_as_ciphertexts_do_not_wrap():
    graph = trace(lambda x: x * x, np.zeros((1, 8), np.int8))
    assert refused(graph, 64)[0].startswith("layer multiply: x has dtype int8; ciphertexts hold")


# -- parameters of a graph ------------------------------------------------------------------------


def test_parameters_survive_json():
    graph = layer(parameters=["w"])
    assert from_json(to_json(graph)) == graph
    assert from_json(to_json(graph)).parameters == ("w",)
    assert '"parameters"' not in to_json(layer())


def test_parameters_that_are_not_inputs_are_refused():
    with pytest.raises(WeftError, match="parameters: v is not an input of the function"):
        layer(parameters=["v"])
    text = to_json(layer(parameters=["w"]))
    with pytest.raises(WeftError, match=r"parameters\[0\]: v is not an input of the graph"):
        from_json(text.replace('"parameters": [\n  "w"', '"parameters": [\n  "v"'))
    with pytest.raises(WeftError, match=r"parameters\[0\]: expected"):
        from_json(text.replace('"parameters": [\n  "w"', '"parameters": [\n  7'))


def test_parameters_survive_rewrites_fusion_and_meshes():
    graph = trace(
        lambda x, w, b: ops.tanh(ops.linear(x, w, b)), (8, 8), (8, 8), (8,), parameters=["w", "b"]
    )
    (rewrite,) = rewrites_of("linear")
    assert rewrite.apply(graph, "linear").parameters == ("w", "b")
    assert fuse(graph, "linear").parameters == ("w", "b")
    assert on_mesh(graph, DeviceMesh("m", (2,), ("x",))).parameters == ("w", "b")


def test_a_square_may_be_written_as_a_power():
    graph = trace(lambda x, w: (x @ w) ** 2, (1, 8), (8, 4), parameters=["w"])
    plan = ckks.plan(graph, slots=64)
    x, w = np.linspace(-1, 1, 8)[None], np.linspace(-0.5, 0.5, 32).reshape(8, 4)
    backend = ckks.Simulator(plan.parameters(security=None), plan.cost.keys)
    found = ckks.run(plan, {"x": x, "w": w}, backend)[graph.outputs[0]]
    np.testing.assert_allclose(found, (x @ w) ** 2, atol=1e-4)
    with pytest.raises(WeftError, match="power cannot be done on ciphertexts"):
        ckks.plan(trace(lambda x: x**3, (1, 8)), slots=64)

"""Layers and modules of torch on ciphertexts: right within the expected error, or refused."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft import WeftError, ckks
from weft.lang import Tracer, Value

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from weft.interop.aten import AtenNode  # noqa: E402
from weft.interop.aten.layers import (  # noqa: E402
    adaptive_avg_pool,
    avg_pool,
    convolution,
)
from weft.interop.export import from_torch  # noqa: E402


def simulated(graph, arrays, slots=128, backend=ckks.Simulator, **bits):
    """The outputs of a plan, its text, and the error that it expected."""
    planned = ckks.plan(graph, slots, ranges=1.0)
    assert str(planned).startswith("encrypted: ")
    parameters = planned.parameters(security=None, **bits)
    keys = planned.cost.keys
    made = backend(parameters, keys, planned.needs_products)
    result = ckks.run(planned, arrays, made)
    (name,) = graph.outputs
    return result[name], result.bounds.errors[planned.network.views.get(name, name)]


# -- every parameter of pooling and convolution, layer by layer -----------------------------------


@st.composite
def pools(draw):
    """A pooling of torch, applied to an array and written into a graph."""
    number = lambda low, high: draw(st.integers(low, high))  # noqa: E731
    window = number(1, 4), number(1, 3)
    options = {
        "stride": draw(st.sampled_from([None, 1, 2, 3, (1, 2)])),
        "padding": tuple(number(0, n // 2) for n in window),
        "ceil_mode": draw(st.booleans()),
        "count_include_pad": draw(st.booleans()),
        "divisor_override": draw(st.sampled_from([None, None, 1, 5])),
    }
    return nn.AvgPool2d(window, **options), (1, number(1, 3), number(3, 8), number(3, 8))


def written(module, x):
    """The graph of one layer, by the table of ATen's operators and without an export."""
    want = module(x)
    tracer = Tracer()
    symbol = tracer.input("x", tuple(x.shape), "float64")
    to = AtenNode(tracer, (Value("made", tuple(want.shape), "float64"),), "", list)
    weights = [
        tracer.input(name, tuple(each.shape), "float64", parameter=True)
        for name, each in module.named_parameters()
    ]
    match module:
        case nn.AvgPool2d():
            stride = module.stride if isinstance(module.stride, tuple) else (module.stride,)
            last = module.count_include_pad, module.divisor_override
            made = avg_pool(
                to, symbol, module.kernel_size, stride, module.padding, module.ceil_mode, *last
            )
        case nn.AdaptiveAvgPool2d():
            made = adaptive_avg_pool(to, symbol, want.shape[-2:])
        case nn.Conv2d():
            kernel, bias = (*weights, None)[:2]
            steps = module.stride, module.padding, module.dilation
            made = convolution(to, symbol, kernel, bias, *steps, False, (0, 0), module.groups)
    arrays = {name: each.detach().numpy() for name, each in module.named_parameters()}
    return tracer.graph([made]), {**arrays, "x": x.numpy()}, want.detach().numpy()


def check(module, shape, seed=0):
    x = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    try:
        module.double()(x)
    except RuntimeError:  # torch refuses it
        return
    try:
        graph, arrays, want = written(module, 2 * x - 1)
    except WeftError as error:
        assert "beyond the padding" in str(error)  # noqa: PT017
        return
    if not graph.applications:
        return  # the input itself
    made, _ = simulated(graph, arrays)
    assert made.shape == want.shape
    assert np.abs(made - want).max() < 1e-9


@settings(max_examples=settings().max_examples // 5)
@given(pools())
def test_average_pools_equal_torch(pool):
    check(*pool)


@settings(max_examples=settings().max_examples // 5)
@given(st.data())
def test_convolutions_equal_torch(data):
    number = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    channels = number(1, 3)
    groups = data.draw(st.sampled_from([1, channels]))
    module = nn.Conv2d(
        channels,
        groups * number(1, 2),
        (number(1, 3), number(1, 3)),
        stride=data.draw(st.sampled_from([1, 2, (2, 3)])),
        padding=(number(0, 2), number(0, 2)),
        dilation=number(1, 2),
        groups=groups,
        bias=data.draw(st.booleans()),
    )
    check(module, (1, channels, number(3, 8), number(3, 8)))


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (3, 5), (8, 1), (7, 8)])
def test_adaptive_pools_equal_torch(sizes):
    check(nn.AdaptiveAvgPool2d(sizes), (1, 2, 8, 8))


def test_a_mean_that_does_not_count_its_padding_on_real_ciphertexts():
    module = nn.AvgPool2d((3, 3), 2, 1, count_include_pad=False).double()
    x = torch.rand(1, 2, 8, 8, dtype=torch.float64)
    graph, arrays, want = written(module, x)
    made, error = simulated(graph, arrays, backend=ckks.Seal)
    assert np.abs(made - want).max() <= error < 1e-6


# -- modules as people write them -----------------------------------------------------------------


class Residual(nn.Module):
    """A block and what goes past it."""

    def __init__(self, *layers):
        super().__init__()
        self.block = nn.Sequential(*layers)

    def forward(self, x):
        return x + self.block(x)


class Polynomial(nn.Module):
    """An activation of degree 2."""

    def forward(self, x):
        return 0.25 * x**2 + 0.5 * x + 0.1


class Square(nn.Module):
    """The activation of CryptoNets."""

    def forward(self, x):
        return x * x


def modules():
    torch.manual_seed(0)
    yield nn.Sequential(nn.Conv2d(2, 3, 3, 2, 1), Square(), nn.Flatten(), nn.Linear(48, 5))
    yield nn.Sequential(Residual(nn.Conv2d(2, 2, 3, padding=1)), nn.AdaptiveAvgPool2d(1))
    yield nn.Sequential(Residual(Square()), nn.AvgPool2d(3, 2, 1, count_include_pad=False))
    yield nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), Square(), nn.AdaptiveAvgPool2d(2))
    yield nn.Sequential(Polynomial(), nn.AdaptiveAvgPool2d((3, 2)), nn.Flatten(), nn.Linear(12, 3))


def weighed(module, kind):
    """The module with weights of a kind."""
    generator = torch.Generator().manual_seed(1)
    for place, parameter in enumerate(module.parameters()):
        made = torch.randn(parameter.shape, generator=generator) / 4
        match kind:
            case "integers":
                made = (8 * made).round()
            case "zero":
                made = 0 * made
            case "huge":
                made = 1e4 * made
            case "tiny":
                made = 1e-9 * made
            case "mixed":
                made = 10.0 ** (9 * (-1) ** place) * made
        parameter.data = made
    for name, buffer in module.named_buffers():
        if buffer.ndim:
            buffer.uniform_(0.5 if "var" in name else -1, 2, generator=generator)
    return module.double().eval()


@pytest.fixture(scope="module")
def exported():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            (module, from_torch(module.double().eval(), torch.zeros(1, 2, 8, 8).double()))
            for module in modules()
        ]


@pytest.mark.parametrize("kind", ["normal", "integers", "zero", "huge", "tiny", "mixed"])
@pytest.mark.parametrize("number", range(5))
def test_modules_are_right_within_the_expected_error_or_refused(exported, number, kind):
    module, graph = exported[number]
    weighed(module, kind)
    x = 2 * torch.rand(1, 2, 8, 8, dtype=torch.float64) - 1
    arrays = {name: each.numpy() for name, each in module.state_dict().items()}
    arrays |= {graph.inputs[-1].name: x.numpy()}
    try:
        made, error = simulated(graph, arrays, slots=256, backend=ckks.Seal)
    except WeftError as refused:
        assert kind in ("huge", "tiny", "mixed", "integers"), refused  # noqa: PT017
        assert "need a modulus" in str(refused) or "exceeds the tolerance" in str(refused)  # noqa: PT017
        return
    want = module(x).detach().numpy()
    assert np.abs(made - want).max() <= error
    assert error < 1e-3 * max(1.0, np.abs(want).max()) or kind not in ("normal", "zero")

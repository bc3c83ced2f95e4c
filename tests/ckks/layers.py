"""Random linear layers, and their results in plain NumPy, without any of Weft."""

from math import prod

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from tests.ckks.packings import packings

from weft.ckks.backends import Backend, Simulator
from weft.ckks.parameters import Parameters
from weft.ckks.slot_program import SlotProgramBuilder, execute
from weft.lang import OPERATORS

NCHW = {
    "input_batch_dimension": 0,
    "input_feature_dimension": 1,
    "input_spatial_dimensions": (2, 3),
    "kernel_output_feature_dimension": 0,
    "kernel_input_feature_dimension": 1,
    "kernel_spatial_dimensions": (2, 3),
    "output_batch_dimension": 0,
    "output_feature_dimension": 1,
    "output_spatial_dimensions": (2, 3),
}


def conv_signature(image, kernel, strides=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), groups=1):
    attributes = {
        **NCHW,
        "window_strides": strides,
        "padding": padding,
        "rhs_dilation": dilation,
        "feature_group_count": groups,
    }
    return OPERATORS["convolution"].sign([image, kernel], attributes)


def conv_answer(image, kernel, strides, padding, dilation, groups):
    """A convolution as loops over images, output features and kernel taps."""
    if len(image) > 1:
        alone = [conv_answer(x[None], kernel, strides, padding, dilation, groups) for x in image]
        return np.concatenate(alone)
    top, bottom, left, right = padding
    padded = np.pad(image[0], ((0, 0), (top, bottom), (left, right)))
    features, per_group, high, wide = kernel.shape
    rows = (padded.shape[1] - dilation[0] * (high - 1) - 1) // strides[0] + 1
    columns = (padded.shape[2] - dilation[1] * (wide - 1) - 1) // strides[1] + 1
    answer = np.zeros((features, rows, columns))
    for f in range(features):
        group = f // (features // groups)
        channels = padded[group * per_group : (group + 1) * per_group]
        for u in range(high):
            for v in range(wide):
                seen = channels[:, u * dilation[0] :, v * dilation[1] :]
                seen = seen[:, :: strides[0], :: strides[1]][:, :rows, :columns]
                answer[f] += np.tensordot(kernel[f, :, u, v], seen, 1)
    return answer[None]


@st.composite
def convolutions(draw, side=9):
    """A signature with an image, a kernel and their convolution."""
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    per_group, features = draw(st.integers(1, 4)), groups * draw(st.integers(1, 3))
    if draw(st.integers(0, 5)) == 0:
        groups, per_group, features = 5, 1, 5 * draw(st.integers(1, 2))  # depthwise
    batch = draw(st.sampled_from([1, 1, 1, 2]))
    image = (batch, groups * per_group, draw(st.integers(1, side)), draw(st.integers(1, side)))
    kernel = (features, per_group, draw(st.integers(1, 5)), draw(st.integers(1, 5)))
    strides = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    dilation = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    padding = tuple(draw(st.integers(0, 3)) for _ in range(4))
    if draw(st.booleans()):
        reach = [(k - 1) * d for k, d in zip(kernel[2:], dilation)]
        padding = (reach[0] // 2, reach[0] - reach[0] // 2, reach[1] // 2, -(-reach[1] // 2))
    for n, k, d, low, high in zip(image[2:], kernel[2:], dilation, padding[::2], padding[1::2]):
        assume(n + low + high >= (k - 1) * d + 1)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    x, w = rng.normal(size=image), rng.normal(size=kernel)
    signature = conv_signature(image, kernel, strides, padding, dilation, groups)
    return signature, x, w, conv_answer(x, w, strides, padding, dilation, groups), None


@st.composite
def products(draw):
    """A linear layer, perhaps of a flattened image."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    n = draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    x, w = rng.normal(size=shape), rng.normal(size=(prod(shape), n))
    signature = OPERATORS["linear"].sign([(prod(shape),), w.shape], {})
    return signature, x, w, x.ravel() @ w, None


@st.composite
def pools(draw):
    """An average pool, perhaps of the whole image."""
    shape = (1, draw(st.integers(1, 5)), draw(st.integers(1, 8)), draw(st.integers(1, 8)))
    window = (draw(st.integers(1, shape[2])), draw(st.integers(1, shape[3])))
    strides = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    if draw(st.booleans()):
        window = strides = shape[2:]
    signature = OPERATORS["avg_pool"].sign([shape], {"window": window, "strides": strides})
    x = np.random.default_rng(draw(st.integers(0, 99))).normal(size=shape)
    rows, columns = signature.result_shapes[0][2:]
    answer = np.array(
        [
            [
                x[
                    :,
                    :,
                    y * strides[0] : y * strides[0] + window[0],
                    z * strides[1] : z * strides[1] + window[1],
                ].mean(axis=(2, 3))
                for z in range(columns)
            ]
            for y in range(rows)
        ]
    ).transpose(2, 3, 0, 1)
    return signature, x, None, answer, 1 / prod(window)


@st.composite
def moves(draw):
    """Transposes, slices, padding and dilation, reversal."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=3, max_size=3)))
    x = np.random.default_rng(draw(st.integers(0, 99))).normal(size=shape)
    match draw(st.sampled_from(["transpose", "slice", "pad", "reverse"])):
        case "transpose":
            order = tuple(draw(st.permutations(range(3))))
            signature = OPERATORS["transpose"].sign([shape], {"permutation": order})
            return signature, x, None, x.transpose(order), None
        case "slice":
            starts = tuple(draw(st.integers(0, n - 1)) for n in shape)
            stops = tuple(draw(st.integers(a + 1, n)) for a, n in zip(starts, shape))
            steps = tuple(draw(st.integers(1, 3)) for _ in shape)
            attributes = {"start_indices": starts, "limit_indices": stops, "strides": steps}
            cut = tuple(slice(*each) for each in zip(starts, stops, steps))
            return OPERATORS["slice"].sign([shape], attributes), x, None, x[cut], None
        case "pad":
            low = tuple(draw(st.integers(0, 3)) for _ in shape)
            high = tuple(draw(st.integers(0, 3)) for _ in shape)
            inner = tuple(draw(st.integers(0, 1)) for _ in shape)
            attributes = {
                "edge_padding_low": low,
                "edge_padding_high": high,
                "interior_padding": inner,
            }
            signature = OPERATORS["pad"].sign([shape, ()], attributes)
            answer = np.zeros(signature.result_shapes[0])
            spread = tuple(
                slice(a, a + (n - 1) * (gap + 1) + 1, gap + 1)
                for a, n, gap in zip(low, shape, inner)
            )
            answer[spread] = x
            return signature, x, None, answer, None
    axes = tuple(draw(st.sets(st.integers(0, 2))))
    signature = OPERATORS["reverse"].sign([shape], {"dimensions": axes})
    return signature, x, None, np.flip(x, axes), None


layers = st.one_of(convolutions(), convolutions(), products(), pools(), moves())


@st.composite
def packed_layers(draw, kinds=layers, sizes=(64, 128, 256, 512, 1024, 4096)):
    """A layer with packings of its operand and its result."""
    signature, x, w, answer, scale = draw(kinds)
    slots = draw(st.sampled_from(sizes))
    source, target = draw(packings(x.shape, slots)), draw(packings(answer.shape, slots))
    view = signature.operand_shapes[0]
    assume(source.shape == view or source.reshaped(view) is not None)
    assume(source.ciphertexts * target.ciphertexts <= 400)
    return signature, source, target, x, w, answer, scale


def simulator(slots, depth=1, keys=None) -> Backend:
    return Simulator(Parameters(2 * slots, depth, security=None), keys)


def run(program, packing, x, keys=None):
    """The rows that a program computes from a packed array, and the back-end's counters."""
    backend = simulator(packing.slots, 1, keys)
    ciphertexts = [backend.encrypt(row) for row in packing.pack(x)]
    before = backend.counters.copy()
    results = execute(program, backend, ciphertexts)
    counters = backend.counters - before
    return [backend.decrypt(each) for each in results], counters


def adjust(backend, ciphertext, level):
    """A ciphertext at a lower level and its scale."""
    builder = SlotProgramBuilder(1)
    result = builder.adjust(0, backend.parameters, ciphertext.level, level)
    return execute(builder.program([result]), backend, [ciphertext])[0]

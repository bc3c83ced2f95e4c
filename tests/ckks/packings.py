"""Random packings of tensors, small enough to check slot by slot."""

from hypothesis import assume
from hypothesis import strategies as st

from weft.ckks.packing import Packing
from weft.errors import WeftError

sizes = st.integers(1, 7)


@st.composite
def packings(draw, shape=None, slots=None):
    """Any packing of a tensor, of a random one unless a shape is given."""
    shape = tuple(draw(st.lists(sizes, min_size=1, max_size=4))) if shape is None else shape
    slots = draw(st.sampled_from([16, 32, 64, 128, 256, 1024])) if slots is None else slots
    kinds = ["dense", "tiled", *(["multiplexed", "phased"] if len(shape) > 2 else [])]
    kind = draw(st.sampled_from([*kinds, *(["vector"] if len(shape) == 1 else [])]))
    period = draw(st.sampled_from([None, None, slots // 2, slots // 4]))
    try:
        match kind:
            case "dense":
                return Packing.dense(shape, slots, period)
            case "vector":
                stride = draw(st.integers(1, 5))
                return Packing.vector(shape[0], slots, stride, period)
            case "tiled":
                side = draw(st.sampled_from([None, None, 8, (8, 16)]))
                return Packing.tiled(shape, slots, side, period)
            case "multiplexed":
                side = draw(st.sampled_from([None, None, 16]))
                return Packing.multiplexed(shape, slots, draw(st.integers(1, 3)), side, period)
        phases = draw(st.sampled_from([1, 2, 3, (1, 2), (2, 1)]))
        return Packing.phased(shape, slots, phases, period=period)
    except WeftError:
        assume(False)

"""Programs whose reports are looked at: a block, many of them, and a loop."""

from itertools import chain

from examples.demo import block_shapes, transformer_block
from tests.plan.region_programs import loop

from weft import Plan, propagate, trace
from weft.plan.machines import H200_NODE

SHAPES = block_shapes(batch=4, positions=16, features=32, heads=4, hidden=128)
MESH = '@m = <["dp"=2, "tp"=4]>'
ODD = "</script><b>\"'&`${1}"
"""A name that would be markup, if anybody took it for that."""


def blocks(count, first="x", sharded=True):
    """A graph of transformer blocks, ten applications each."""

    def network(x, *weights):
        for n in range(count):
            x = transformer_block(x, *weights[6 * n : 6 * n + 6])
        return x

    shape, *others = SHAPES.values()
    _, *names = SHAPES
    shardings = {first: '<@m, [{"dp"}, {}, {}]>'}
    shardings |= {f"l{n}.wq": '<@m, [{}, {"tp"}, {}]>' for n in range(count)}
    shardings |= {f"l{n}.w1": '<@m, [{}, {"tp"}]>' for n in range(count)}
    return trace(
        network,
        shape,
        *others * count,
        names=[first, *chain(*([f"l{n}.{name}" for name in names] for n in range(count)))],
        meshes=[MESH],
        shardings=shardings if sharded else {},
    )


def planned(count, first="x"):
    return Plan.of(propagate(blocks(count, first)), H200_NODE)


LOOP = loop('{"y"}')
"""A loop whose value is cut both ways."""

"""Weft: a shard is a box of integers.

Arrays too large for one device, process, ciphertext, chip or file are all cut the same way: count a
program's sub-problems with an integer index space, cut it into boxes, give the boxes to the cells
of a mesh, and project each box onto the arrays by an affine map.

>>> import weft
>>> mesh = weft.DeviceMesh("cluster", (2, 4), ("dp", "tp"))
>>> spec = weft.ShardingSpec(mesh, [weft.DimSpec(["dp"]), weft.DimSpec(["tp"])])
>>> print(spec.region((8, 16), (1, 2)))
[4:8, 8:12]

A name is loaded when it is first used, so that `import weft` costs next to nothing.
"""

from importlib import import_module

__version__ = "0.1.0"

TYPE_CHECKING = (
    False  # what type checkers take for True; `typing` itself would cost more than we do
)
if TYPE_CHECKING:
    from weft.draw import show as show
    from weft.errors import LayoutError as LayoutError
    from weft.errors import ParseError as ParseError
    from weft.errors import WeftError as WeftError
    from weft.interop.export import from_torch as from_torch
    from weft.interop.jax import from_jax as from_jax
    from weft.interop.jax import to_jax as to_jax
    from weft.interop.torch import to_dtensor as to_dtensor
    from weft.lang import Graph as Graph
    from weft.lang import Monoid as Monoid
    from weft.lang import Operator as Operator
    from weft.lang import ops as ops
    from weft.lang import trace as trace
    from weft.layout import DeviceMesh as DeviceMesh
    from weft.layout import DimSpec as DimSpec
    from weft.layout import ShardingSpec as ShardingSpec
    from weft.layout import SubAxis as SubAxis
    from weft.plan import Machine as Machine
    from weft.plan import Plan as Plan
    from weft.plan import estimate as estimate
    from weft.plan import plan_reshard as plan_reshard
    from weft.plan import propagate as propagate
    from weft.plan import search as search
    from weft.runtime import Tensor as Tensor
    from weft.runtime import communication as communication
    from weft.runtime import run as run
    from weft.space import BlockGrid as BlockGrid
    from weft.space import Projection as Projection
    from weft.space import ZRange as ZRange
    from weft.space import cover as cover

_HOMES = {
    "BlockGrid": "weft.space",
    "DeviceMesh": "weft.layout",
    "DimSpec": "weft.layout",
    "Graph": "weft.lang",
    "LayoutError": "weft.errors",
    "Machine": "weft.plan",
    "Monoid": "weft.lang",
    "Operator": "weft.lang",
    "ParseError": "weft.errors",
    "Plan": "weft.plan",
    "Projection": "weft.space",
    "ShardingSpec": "weft.layout",
    "SubAxis": "weft.layout",
    "Tensor": "weft.runtime",
    "WeftError": "weft.errors",
    "ZRange": "weft.space",
    "communication": "weft.runtime",
    "cover": "weft.space",
    "estimate": "weft.plan",
    "from_jax": "weft.interop.jax",
    "from_torch": "weft.interop.export",
    "ops": "weft.lang",
    "plan_reshard": "weft.plan",
    "propagate": "weft.plan",
    "run": "weft.runtime",
    "search": "weft.plan",
    "show": "weft.draw",
    "to_dtensor": "weft.interop.torch",
    "to_jax": "weft.interop.jax",
    "trace": "weft.lang",
}

# What needs an extra is left alone by `from weft import *`.
__all__ = [  # noqa: PLE0604 - all of them are strings
    *(
        name
        for name, home in _HOMES.items()
        if not home.startswith(("weft.runtime", "weft.interop"))
    ),
    "__version__",
]


if not TYPE_CHECKING:  # a checker that saw this would take any name for good

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module 'weft' has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])

"""StableHLO text into a `Graph`: whatever `jax.jit(f).lower(...).as_text()` prints.

Values keep the names of the text. Calls are inlined: the values of a function that `%1` calls are
`1/arg0`, `1/cst`, `1/0`, and what it returns is `1`; arrays cross the border by an edge. Loops,
choices and manual computations have regions, whose values are `3/body/0`, `4/branch1/0`, `5/0`.
What no operator describes is opaque: each of its dimensions is seen whole, so that it is computed
on replicated arrays and stops no one else.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from weft.errors import WeftError
from weft.interop.build import OPAQUE, Builder
from weft.interop.records import Module
from weft.lang import Graph


def read(text: str, names: Sequence[str] = ()) -> Graph:
    """Read the text of a module, with its meshes and shardings; inputs may get other names.

    >>> graph = read('''
    ...     sdy.mesh @m = <["x"=2]>
    ...     func.func @main(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@m, [{"x"}]>})
    ...             -> tensor<8xf32> {
    ...         %0 = stablehlo.custom_call @mystery(%arg0) : (tensor<8xf32>) -> tensor<8xf32>
    ...         return %0 : tensor<8xf32>
    ...     }
    ... ''')
    >>> graph.meshes, dict(graph.shardings), opaque(graph)
    (('@m = <["x"=2]>',), {'arg0': '<@m, [{"x"}]>'}, ['custom_call @mystery'])
    """
    return Builder(_parse(text), names).graph()


def opaque(graph: Graph) -> list[str]:
    """The operations that no operator describes, each once, in the order of the program."""
    names = (application.operator for application, _ in graph.walk())
    found = (name.removeprefix(OPAQUE) for name in names if name.startswith(OPAQUE))
    return list(dict.fromkeys(found))


def _parse(text: str) -> Module:
    try:
        module: Module = import_module("weft.interop.mlir").parse(text)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("jax", "jaxlib"):
            raise
        message = f"reading StableHLO needs {error.name}, which is not installed"
        raise WeftError(message, hint="pip install weft[jax]") from None
    return module

"""Running programs: kernels on boxes, cell by cell; tensors that compute at once.

The room is also its verb: `weft.run(plan, inputs)` runs a plan. `weft.run.torch` runs it on many
ranks, `weft.run.grid` on the workers of a cluster; they are loaded when they are used.
"""

import sys
from importlib import import_module
from types import ModuleType

try:
    import array_api_compat  # noqa: F401
    import numpy  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"running arrays needs {error.name}, which is not installed: pip install 'weft[run]'",
        name=error.name,
    ) from None

from weft.run.execute import run
from weft.run.ledger import Communication, CommunicationError, communication
from weft.run.tensor import Tensor
from weft.run.validate import Validation, validate

__all__ = [
    "Communication",
    "CommunicationError",
    "Tensor",
    "Validation",
    "communication",
    "run",
    "validate",
]


def __getattr__(name: str) -> ModuleType:
    if name not in ("grid", "torch"):
        raise AttributeError(f"module 'weft.run' has no attribute {name!r}")
    return import_module(f"weft.run.{name}")


class _Room(ModuleType):
    """A module that can be called."""

    __call__ = staticmethod(run)


sys.modules[__name__].__class__ = _Room

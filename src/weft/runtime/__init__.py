"""Executors: run plans in one process, and tensors that compute at once.

`weft.run(plan, inputs)` runs a plan on all cells in this process. `weft.runtime.torch` runs it on
`torch.distributed` ranks and `weft.runtime.cluster` on the workers of a cluster; import them where
they are needed.
"""

try:
    import array_api_compat  # noqa: F401
    import numpy  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"running arrays needs {error.name}, which is not installed: pip install 'weft[run]'",
        name=error.name,
    ) from None

from weft.runtime.communication_log import Communication, CommunicationError, communication
from weft.runtime.execute import run
from weft.runtime.tensor import Tensor
from weft.runtime.validate import Validation, validate

__all__ = [
    "Communication",
    "CommunicationError",
    "Tensor",
    "Validation",
    "communication",
    "run",
    "validate",
]

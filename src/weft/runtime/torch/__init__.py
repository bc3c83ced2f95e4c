"""Plans run by many ranks of `torch.distributed`: each holds its own shards, and boxes really move.

torchrun --nproc-per-node 4 -m my_program
"""

try:
    import torch.distributed  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "running on many ranks needs torch, which is not installed: pip install 'weft[torch]'",
        name=error.name,
    ) from None

from weft.runtime.torch.execute import run
from weft.runtime.torch.ranks import RankError
from weft.runtime.torch.shard import Shard

__all__ = ["RankError", "Shard", "run"]

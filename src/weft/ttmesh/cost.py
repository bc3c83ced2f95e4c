"""What is cheaper: several writes straight from the tensor, or a copy on the host and one write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from weft.ttmesh.config import ShardedBufferConfig
from weft.ttmesh.cut import Cut
from weft.ttmesh.datum import Datum
from weft.ttmesh.staging import Stage

TRANSFER = 5e-6
"""Seconds that it takes to start a transfer to one chip, whatever it carries."""
RATE = 5e9
"""Bytes a second that a strided copy moves in long runs."""
RUN = 20e-9
"""Seconds that each contiguous run of a strided copy takes beside."""
WORD = 4


class Cost(NamedTuple):
    """What the two ways take beside moving the bytes, which is the same for both."""

    writes: float
    copies: float
    fault: str | None
    """What the runtime would get wrong in the writes, where it would."""

    @property
    def choice(self) -> Literal["writes", "copies"]:
        """What takes less time, and is right."""
        return "copies" if self.fault or self.copies < self.writes else "writes"


def price(
    cuts: Sequence[Cut],
    configs: Sequence[tuple[ShardedBufferConfig, int]],
    stage: Stage,
    datum: Datum,
) -> Cost:
    """The seconds of both ways: a transfer for each chip of each write; or a copy, and one each."""
    transfers = sum(config.mesh_device.size * count for config, count in configs)
    run = 1
    for cut in reversed(cuts):
        run *= cut.lengths(0)[0]
        if cut.count > 1:
            break
    size = stage.config.global_buffer_size
    runs = stage.config.global_buffer_shape.size / max(1, run)
    copied = size / RATE + runs * RUN + stage.cells.size * TRANSFER
    return Cost(transfers * TRANSFER, copied, _fault([c for c, _ in configs], datum))


def _fault(configs: Sequence[ShardedBufferConfig], datum: Datum) -> str | None:
    for config in configs:
        width = config.physical_shard_shape.width
        if width * datum.size % WORD:
            return (
                f"rows of a shard are {width} x {datum.size} = {width * datum.size} bytes, "
                f"no multiple of {WORD}, and the runtime would shift them"
            )
    return None

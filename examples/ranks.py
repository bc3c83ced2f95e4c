"""A layer on many ranks: each holds its part of the weights, and every byte is counted.

torchrun --nproc-per-node 4 -m examples.ranks
"""

import os

import torch
import torch.distributed as dist

import weft
from weft.runtime.torch import run


def main() -> None:
    """Shard a layer over all ranks, print the predicted bytes, run it, and compare."""
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    graph = weft.trace(
        lambda x, up, down: weft.ops.relu(x @ up) @ down,
        (6, 16),
        (16, 64),
        (64, 16),
        meshes=[f'@ranks = <["tp"={size}]>'],
        shardings={"up": '<@ranks, [{}, {"tp"}]>', "down": '<@ranks, [{"tp"}, {}]>'},
    )
    plan = weft.Plan.of(weft.propagate(graph))
    if rank == 0:
        print(plan, flush=True)

    torch.manual_seed(0)
    x, up, down = torch.randn(6, 16), torch.randn(16, 64), torch.randn(64, 16)
    device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
    inputs = {"x": x.to(device), "up": up.to(device), "down": down.to(device)}
    with weft.communication() as moved:
        (y,) = run(plan, inputs)
    received = sum(movement.received[rank] for movement in moved.movements)
    assert received == plan.received[rank], (received, plan.received)
    torch.testing.assert_close(y.gather().cpu(), torch.relu(x @ up) @ down, rtol=1e-4, atol=1e-4)
    print(f"rank {rank} received {received} B, as planned, and holds {y.box} of y", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

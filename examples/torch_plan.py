"""A plan searched in Weft for a torch module: DTensor runs the module, and takes the plan.

Run it with `python -m examples.torch_plan`. Eight ranks on this machine hold the parameters as the
plan says; the collectives that DTensor starts are counted, and compared with the plan.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from weft.interop.torch import to_dtensor_placements

MESH = weft.DeviceMesh("mesh", (2, 4), ("dp", "tp"))
ROWS, FEATURES, HIDDEN, LAYERS = 32, 128, 512, 2
ROOM = 300_000
"""The bytes that a rank may hold: all parameters take 525,312, so that they must be cut."""

RESULTS = ("add_1", "add_3")
"""What layers make, in the graph. There the plan ends its sums; DTensor by itself would keep them
partial, and add them up at every use: four all-reduces."""

RECEIVED: dict[str, Callable[[int], float]] = {
    "all_gather_into_tensor": lambda group: (group - 1) / group,
    "all_reduce": lambda group: 2 * (group - 1) / group,
    "all_to_all_single": lambda group: (group - 1) / group,
    "reduce_scatter_tensor": lambda group: group - 1,
}
"""What a rank receives at least, as a part of what it has in the end."""


class Layer(nn.Module):  # type: ignore[misc]
    """Normalises, widens, bends and narrows, with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(FEATURES))
        self.up = nn.Linear(FEATURES, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, FEATURES, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer."""
        size = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
        bent = nn.functional.gelu(self.up(x * size * self.gain))
        made: torch.Tensor = x + self.down(bent)
        return made


def network() -> nn.Module:
    """Some layers with random parameters, the same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(*(Layer() for _ in range(LAYERS)))


def planned() -> weft.Plan:
    """Return the fastest plan that fits, with rows over "dp" and searched parameter shardings."""
    rows = weft.ShardingSpec.parse('<@mesh, [{"dp"}, {}]>', MESH)
    graph = weft.from_torch(
        network(),
        torch.empty(ROWS, FEATURES),
        shardings={"input": rows},
        output_shardings={0: rows},
    )
    front = weft.search(graph, MESH)
    return next(plan for plan in front if max(plan.peak) <= ROOM)


class Counted(TorchDispatchMode):  # type: ignore[misc]
    """The collectives that this rank starts, and the bytes that it receives at least."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See through DTensor to what it calls."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        made = func(*args, **(kwargs or {}))
        name = str(func).removeprefix("_c10d_functional.").partition(".")[0]
        if name in RECEIVED:
            group = dist.distributed_c10d._resolve_process_group(args[-1]).size()
            held = made.numel() * made.element_size()
            self.found.append((name, round(RECEIVED[name](group) * held)))
        return made


def rank_main(rank: int, folder: str, plan: weft.Plan) -> None:
    """Run one rank: shard the parameters, run one forward pass, gather the result."""
    torch.set_num_threads(1)
    size = MESH.size
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=size)
    mesh = dist.device_mesh.init_device_mesh("cpu", MESH.shape, mesh_dim_names=MESH.axis_names)
    placements = weft.to_dtensor(plan)
    module = network().requires_grad_(False)
    x = torch.randn(ROWS, FEATURES)
    expected = module(x)
    for name, parameter in list(module.named_parameters()):
        owner, _, own = name.rpartition(".")
        part = distribute_tensor(parameter, mesh, placements.inputs[name])
        part = nn.Parameter(part, requires_grad=False)
        module.get_submodule(owner).register_parameter(own, part)
    for layer, name in zip(module.children(), RESULTS):
        kept = to_dtensor_placements(plan.specs[name])
        layer.register_forward_hook(lambda _, __, made, kept=kept: made.redistribute(mesh, kept))
    rows = distribute_tensor(x, mesh, placements.inputs["input"])
    with Counted() as counted:
        made = module(rows).redistribute(mesh, placements.outputs[0])
    apart = float((made.full_tensor() - expected).abs().max())
    torch.save({"apart": apart, "found": counted.found}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def main() -> None:
    """Search, run on eight ranks, compare."""
    torch.set_num_threads(1)  # ranks are forked, and threads are not
    plan = planned()
    print(f"{max(plan.peak)} B on a rank")
    for name, placements in weft.to_dtensor(plan).inputs.items():
        print(f"  {name:15} {placements}")
    for line in str(plan).splitlines():
        if line.endswith(" B"):
            print(f"predicted  {' '.join(line.split()[1:])}")
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(
            rank_main, (folder, plan), nprocs=MESH.size, start_method="fork"
        )
        said = [torch.load(Path(folder) / f"{rank}.pt") for rank in range(MESH.size)]
    for name, received in said[0]["found"]:
        print(f"counted    {name}: {received} B on rank 0")
    counts = tuple(sum(received for _, received in each["found"]) for each in said)
    apart = max(each["apart"] for each in said)
    print(f"at most apart {apart:.1e}")
    print(f"predicted {sum(plan.received)} B, counted {sum(counts)} B")
    assert apart < 1e-5
    assert counts == plan.received


if __name__ == "__main__":
    main()

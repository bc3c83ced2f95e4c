"""What ranks do in the tests of many ranks: `python -m tests.runtime.ranks FOLDER TIMEOUT JOB...`.

The environment says how many ranks there are (WORLD_SIZE), and which of them to fork from this
process (RANKS), since importing torch takes longer than most tests. A rank writes what it found as
JSON, and nothing if something is wrong.
"""

import json
import os
import signal
import sys
import time
import warnings
from collections import Counter
from datetime import timedelta
from pathlib import Path

import ml_dtypes
import numpy as np
import torch
import torch.distributed as dist
from tests.runtime.tensors import parts_of, random_spec
from tests.runtime.test_programs import agree, planned
from tests.runtime.user_programs import user_plan

from weft import (
    DeviceMesh,
    DimSpec,
    Operator,
    Plan,
    ShardingSpec,
    WeftError,
    communication,
    propagate,
    run,
    trace,
)
from weft.lang import OPERATORS
from weft.lang.arithmetic import apply_all
from weft.plan import plan_reshard
from weft.program import Mask, Slice, Transfer
from weft.runtime import Tensor
from weft.runtime.torch import RankError, Shard, ranks
from weft.runtime.torch import run as run_ranks

JOBS = {}
MONOIDS = ("sum", "sum", "max", "min", "prod")


def job(function):
    JOBS[function.__name__] = function
    return function


def some_mesh(rng, size):
    """A mesh of so many cells, in any shape, on devices in any order."""
    shape = []
    while np.prod(shape, dtype=int) < size:
        left = size // int(np.prod(shape, dtype=int))
        shape.append(int(rng.choice([n for n in range(1, left + 1) if left % n == 0])))
    ids = [int(n) for n in rng.permutation(size)] if rng.random() < 0.5 else None
    return DeviceMesh("m", shape, [f"a{n}" for n in range(len(shape))], ids)


def kinds(plan):
    """Return the kinds of the moves of a plan's program."""
    names = {Slice: "slice", Mask: "mask"}
    for move in plan.program.walk():
        if isinstance(move, Transfer | Slice | Mask):
            yield move.kind if isinstance(move, Transfer) else names[type(move)]


UNSIGNED = frozenset(["uint16", "uint32", "uint64"])
KEY = (2,)
"""The shape of a random key, which is uint32 and not computed with."""


def as_numpy(tensor):
    """A tensor of torch as an array; NumPy takes bfloat16 as bits."""
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)


def lacks_a_kernel(plan, inputs):
    """Whether torch has no kernel for some cell, as for a maximum of booleans.

    In one process, so that all ranks agree: one that raises alone would leave the others waiting.
    """
    tensors = {name: as_torch(array) for name, array in inputs.items()}
    try:
        run(plan, tensors)
    except WeftError as error:
        return "has no kernel for these arrays" in str(error)
    return False


def as_torch(array):
    """An array of NumPy as a tensor; torch takes bfloat16 as bits."""
    array = np.asarray(array)
    if array.dtype != ml_dtypes.bfloat16:
        return torch.from_numpy(array.copy())
    return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)


@job
def programs(first, count):
    """Random programs: values as NumPy's, every movement as in one process and as predicted."""
    seen, moved_bytes = Counter(), 0
    for seed in range(first, first + count):
        mesh = some_mesh(np.random.default_rng(seed), dist.get_world_size())
        program, graph, inputs = planned(seed, mesh)
        values = [value for value in graph.all_values.values() if value.shape != KEY]
        if not UNSIGNED.isdisjoint(value.dtype for value in values):
            continue  # torch has next to no operators for them
        plan = Plan.of(propagate(graph))
        if lacks_a_kernel(plan, inputs):
            continue
        moved_bytes += check_run(seed, program, plan, inputs)
        seen.update(kinds(plan))
    return {"kinds": seen, "bytes": moved_bytes}


@job
def user_programs(first, count):
    """The same for programs of users: their monoids, their rewrites and random numbers."""
    used, moved_bytes = Counter(), 0
    for seed in range(first, first + count):
        mesh = some_mesh(np.random.default_rng(seed), dist.get_world_size())
        program, plan, inputs, rewrites = user_plan(seed, mesh)
        if lacks_a_kernel(plan, inputs):
            continue
        moved_bytes += check_run(seed, program, plan, inputs)
        used.update({"programs": 1, **Counter(rewrites)})
    return {"used": used, "bytes": moved_bytes}


def check_run(seed, program, plan, inputs):
    """Run a plan on the ranks, and check what it computes and counts; return the bytes received."""
    rank, size = dist.get_rank(), dist.get_world_size()
    with communication() as expected:
        run(plan, inputs)
    with communication() as moved:
        outputs = run_ranks(plan, inputs)
    cell = list(plan.mesh.device_ids or range(size)).index(rank)
    assert moved.movements == expected.movements, f"seed {seed}\n{moved}\n{expected}"
    received = sum(movement.received[cell] for movement in moved.movements)
    assert received == plan.received[cell], f"seed {seed}"
    assert moved.peaks == {rank: plan.peak[cell]}, f"seed {seed}"
    for place, output, spec in zip(program.outputs, outputs, plan.outputs):
        whole = program.values[place]
        assert output.spec == spec
        assert output.box == spec.region(whole.shape, cell)
        if not spec.partial:
            assert agree(as_numpy(output.array), whole[output.box.slices()]), f"seed {seed}\n{plan}"
        assert agree(as_numpy(output.gather()), whole), f"seed {seed}\n{plan}"
    return received


@job
def reshards(first, count):
    """Any sharding to any other, with parts: shards and bytes as in one process."""
    size, seen, ways = dist.get_world_size(), Counter(), Counter()
    choose = ranks.Ranks._way
    ranks.Ranks._way = lambda *given: ways.update([(way := choose(*given)).__name__]) or way
    for src, dst, shape in EVERY_KIND:
        mesh = DeviceMesh("m", (2, size // 2), ("x", "y"))
        specs = (ShardingSpec.parse(f"<@m, {text}>", mesh) for text in (src, dst))
        seen.update(check_reshard(np.random.default_rng(0), np.ones(shape, int), *specs))
    dtypes = ["int64", "int32", "uint8", "int16", "float64", "float32", "complex64", "bool"]
    for seed in range(first, first + count):
        rng = np.random.default_rng(seed)
        mesh = some_mesh(rng, size)
        shape = rng.integers(0, 9, rng.integers(0, 4)) * (size // 2 if rng.random() < 0.4 else 1)
        array = np.asarray(rng.integers(0, 3, [int(n) for n in shape]))
        array = array.astype(str(rng.choice(dtypes)))
        monoids = () if array.dtype.kind in "bc" else MONOIDS
        src = random_spec(rng, mesh, array.shape, monoids)
        dst = random_spec(rng, mesh, array.shape, monoids=())
        if rng.random() < 0.3:
            src = ShardingSpec(mesh, src.dim_specs)
            dst = random_spec(rng, mesh, array.shape, monoids)
        seen.update(check_reshard(rng, array, src, dst, f"seed {seed}"))
    ranks.Ranks._way = choose
    groups = sum(map(len, ranks._ALONG.values()))
    return {"kinds": seen, "ways": ways, "groups": groups}


EVERY_KIND = [
    ('[{"x"}, {}]', "[{}, {}]", (8, 8)),  # all_gather
    ('[{"x"}, {}]', '[{}, {"x"}]', (8, 8)),  # all_to_all
    ('[{"x"}, {}]', '[{"y"}, {}]', (8, 8)),  # collective_permute
    ('[{}, {}], unreduced={"x"}', "[{}, {}]", (8, 8)),  # all_reduce
    ('[{}, {}], unreduced={"x"}', '[{"x"}, {}]', (8, 8)),  # reduce_scatter
    ("[{}, {}]", '[{"x"}, {}]', (8, 8)),  # slice
    ("[{}, {}]", '[{}, {}], unreduced={"x"}', (8, 8)),  # mask
]
"""Reshards that random ones may not include: two shardings, and the shape of the array."""


def check_reshard(rng, array, src, dst, label=""):
    """Reshard an array, and check its shards and what is counted; return the kinds of steps."""
    rank, mesh = dist.get_rank(), src.mesh
    try:
        plan = plan_reshard(src, dst, array.shape, array.itemsize)
    except WeftError:
        return ()
    whole = Tensor.of_shards(parts_of(rng, array, src), src, array.shape)
    with communication() as expected:
        there = whole.with_sharding(dst)
    cell = list(mesh.device_ids or range(mesh.size)).index(rank)
    with communication() as moved:
        shard = Shard(torch.tensor(whole.shards[cell]), src, array.shape)
        made = shard.with_sharding(dst)
    assert np.array_equal(made.array, there.shards[cell]), f"{label}\n{plan!r}"
    peaks = dict(zip(plan.devices, plan.peak)) if plan.steps else {}
    assert expected.peaks == peaks, f"{label}\n{plan!r}"
    mine = {device: peak for device, peak in peaks.items() if device == rank}
    assert moved.peaks == mine, f"{label}\n{plan!r}"
    assert made.dtype == shard.dtype == str(array.dtype)
    assert moved.movements == expected.movements, f"{label}\n{moved}\n{expected}"
    for step, movement in zip(
        [step for step in plan.steps if step.kind not in ("slice", "mask")], moved.movements
    ):
        assert movement[2:] == (step.kind, step.sent, step.received), label
    return [step.kind for step in plan.steps]


@job
def sums_by_torch(first, count):
    """The same with reduce_scatter left to torch, as it is where gloo is not the back-end."""
    known = dict(ranks.NATIVE)
    ranks.NATIVE["gloo"] = frozenset({"all_reduce", "reduce_scatter"})
    try:
        return reshards(first, count)
    finally:
        ranks.NATIVE.update(known)


def matmul_plan(size, shape=(8, 6), dtype="float32"):
    mesh = DeviceMesh("m", (size,), ("x",))
    graph = trace(
        lambda x, w: x @ w,
        np.empty(shape, dtype),
        np.empty((shape[1], 4), dtype),
        meshes=[mesh],
        shardings={"x": '<@m, [{}, {"x"}]>'},
    )
    return Plan.of(propagate(graph))


def refusal(function, *given):
    """The message of an error, and what it hints at."""
    try:
        function(*given)
    except WeftError as error:
        return [type(error).__name__, str(error), *getattr(error, "__notes__", ())]
    return None


@job
def refusals():
    """What is refused, on all ranks alike; nothing moves, so that the ranks stay together."""
    size, rank = dist.get_world_size(), dist.get_rank()
    plan = matmul_plan(size)
    x, w = np.ones((8, 6), "float32"), np.ones((6, 4), "float32")
    spec = plan.specs["x"]
    found = {
        "missing": refusal(run_ranks, plan, {"x": x}),
        "unknown": refusal(run_ranks, plan, {"x": x, "w": w, "z": w}),
        "shape": refusal(run_ranks, plan, {"x": x[:4], "w": w}),
        "dtype": refusal(run_ranks, plan, {"x": x.astype("float64"), "w": w}),
        "size": refusal(run_ranks, matmul_plan(size + 1), {"x": x, "w": w}),
        "shard": refusal(Shard, torch.ones(8, 3), spec, (8, 6), "x"),
        "devices": refusal(
            Shard,
            torch.ones(1),
            ShardingSpec(DeviceMesh("m", (size,), ("x",), range(1, size + 1)), [DimSpec(["x"])]),
            (size,),
        ),
        "plans": refusal(
            run_ranks,
            matmul_plan(size, (8, 6 + 2 * (rank == 1))),
            {
                "x": np.ones((8, 6 + 2 * (rank == 1)), "float32"),
                "w": np.ones((6 + 2 * (rank == 1), 4), "float32"),
            },
        ),
    }
    parts = trace(
        lambda x: x + 1, (4,), meshes=[plan.mesh], shardings={"x": '<@m, [{}], unreduced={"x"}>'}
    )
    OPERATORS.add(Operator("mystery", "n -> n"))
    unknown = trace(lambda x: apply_all("mystery", x)[0], (4,), meshes=[plan.mesh])
    found["kernel"] = refusal(run_ranks, propagate(unknown), {"x": np.ones(4, "float32")})
    found["partial"] = refusal(run_ranks, propagate(parts), {"x": np.ones(4, "float32")})
    with communication(budget=0) as moved:
        found["budget"] = refusal(run_ranks, plan, {"x": x, "w": w})
        assert not moved.movements
    with communication(budget=sum(plan.received)) as moved:
        (y,) = run_ranks(plan, {"x": torch.ones(8, 6), "w": w})
        assert moved.received == moved.budget
    assert np.array_equal(y.gather(), x @ w)
    return found


@job
def shards_in_and_out():
    """Outputs are inputs of the next run, wherever they lie; a part is given as a shard."""
    size = dist.get_world_size()
    plan = matmul_plan(size, (8, 8), "int64")
    x, w = np.arange(64).reshape(8, 8), np.arange(32).reshape(8, 4)
    (y,) = run_ranks(plan, {"x": x, "w": w})
    square = trace(
        lambda y: y.transpose(1, 0) @ y,
        np.empty((8, 4), "int64"),
        meshes=[plan.mesh],
        shardings={"y": '<@m, [{"x"}, {}]>'},
    )
    (z,) = run_ranks(propagate(square), {"y": y})
    assert np.array_equal(z.gather(), (x @ w).T @ (x @ w))
    partial = ShardingSpec.parse('<@m, [{}, {}], unreduced={"x"}>', plan.mesh)
    part = Shard(torch.full((8, 4), dist.get_rank() + 1), partial, (8, 4), "y")
    (z,) = run_ranks(propagate(square), {"y": part})
    total = np.full((8, 4), size * (size + 1) // 2)
    assert np.array_equal(z.gather(), total.T @ total)
    return {"text": [str(y), repr(part)]}


@job
def nested_uneven():
    """One dimension cut by two axes, unevenly: where a peer errs in silence."""
    size, rank = dist.get_world_size(), dist.get_rank()
    mesh = DeviceMesh("m", (2, size // 2), ("x", "y"))
    spec, rows = (ShardingSpec(mesh, [DimSpec(axes)]) for axes in (["x", "y"], []))
    back = ShardingSpec(mesh, [DimSpec(["y", "x"])])
    for n in range(1, 4 * size):
        array = np.arange(n)
        graph = trace(lambda a: a * 2 + a.sum(0), array, meshes=[mesh], shardings={"a": spec})
        (out,) = run_ranks(propagate(graph), {"a": array})
        assert np.array_equal(out.gather(), array * 2 + array.sum())
        shard = Shard(torch.tensor(array[spec.region((n,), rank).slices()]), spec, (n,))
        for there in (back, rows, spec):
            shard = shard.with_sharding(there)
            assert np.array_equal(shard.array, array[there.region((n,), rank).slices()])
    return {}


@job
def in_a_smaller_group():
    """The first half of the ranks run a plan among themselves, and the others do not."""
    half = dist.get_world_size() // 2
    group = dist.new_group(range(half))
    if dist.get_rank() < half:
        plan = matmul_plan(half)
        x, w = np.ones((8, 6), "float32"), np.ones((6, 4), "float32")
        (y,) = run_ranks(plan, {"x": x, "w": w}, group=group)
        assert np.array_equal(y.gather(), x @ w)
        return {}
    return {"outside": refusal(run_ranks, matmul_plan(half), {}, group)}


@job
def death(how, folder):
    """Rank 1 dies, or stalls, in the middle of a program; nobody is waited for longer than 20 s."""

    def kernel(block, x):
        if dist.get_rank() == 1 and how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if dist.get_rank() == 1:  # it stalls until the others have given up
            others = [Path(folder, f"found.{rank}") for rank in (0, 2, 3)]
            end = time.monotonic() + 300
            while not all(file.exists() for file in others) and time.monotonic() < end:
                time.sleep(0.05)
        return x + 0

    OPERATORS.add(Operator("fatal", "m n -> m n", kernel))
    size = dist.get_world_size()
    mesh = DeviceMesh("m", (size,), ("x",))
    graph = trace(
        lambda x: apply_all("fatal", x @ x)[0].sum(0),
        np.empty((8, 8)),
        meshes=[mesh],
        shardings={"x": '<@m, [{"x"}, {}]>'},
    )
    plan = propagate(graph)
    dist.barrier()  # on a busy machine, some begin much later than others
    group = dist.new_group(timeout=timedelta(seconds=20))
    dist.barrier()
    try:
        run_ranks(plan, {"x": np.ones((8, 8))}, group=group)
    except RankError as error:
        return {"error": str(error)}
    return {}


def main(folder, *names):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    warnings.simplefilter("error")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=600),
    )
    found = {}
    for name in names:
        call, *given = name.split(":")
        begin = time.monotonic()
        found[call] = JOBS[call](*(int(n) if n.isdigit() else n for n in given))
        found[call]["took"] = time.monotonic() - begin
    with open(f"{folder}/found.{rank}", "w", encoding="utf-8") as file:
        json.dump(found, file)
    if "death" in found:
        os._exit(0)  # there is nobody left to say goodbye to
    dist.destroy_process_group()


def fork_ranks(*given):
    children = []
    for rank in os.environ["RANKS"].split(","):
        os.environ["RANK"] = rank
        child = os.fork()
        if not child:
            main(*given)
            return
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    fork_ranks(*sys.argv[1:])

"""Plans on 4 and 8 ranks of torch.distributed: values as NumPy's, bytes as predicted."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from tests.trials import EXAMPLES, FULL, trials

from weft import DeviceMesh, Plan, ShardingSpec, WeftError, plan_reshard, propagate, trace
from weft.lang.struct_array import StructArray
from weft.runtime.torch import Shard, transport
from weft.runtime.torch import run as run_ranks
from weft.runtime.torch.schedule import schedule

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = trials(120, fewest=30)
"""Random programs on 4 ranks; a tenth of them on 8 ranks."""
USER_PROGRAMS = trials(300, 2000) if EXAMPLES >= FULL else 3

KINDS = {
    *("slice", "mask", "all_gather", "all_reduce", "all_to_all", "reduce_scatter"),
    *("collective_permute", "exchange", "fetch"),
}


def environment(**more):
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    alone = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": ":".join(paths)}
    return os.environ | alone | more


def launch(folder, size, *jobs, processes=1):
    """Start the ranks and wait; give what each of them found, None from the dead, and their log.

    They are forked from so many processes, each of which has its own order of sets.
    """
    command = [sys.executable, "-m", "tests.runtime.ranks", str(folder), *jobs]
    ranks = [",".join(map(str, range(size)[n::processes])) for n in range(processes)]
    log = folder / "log"
    with log.open("w", encoding="utf-8") as output:
        started = [
            subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment(WORLD_SIZE=str(size), RANKS=some),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            for some in ranks
        ]
        try:
            for process in started:
                process.wait(900 + PROGRAMS + USER_PROGRAMS)
        finally:
            for process in started:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    files = [folder / f"found.{rank}" for rank in range(size)]
    found = [json.loads(file.read_text("utf-8")) if file.exists() else None for file in files]
    return found, log.read_text("utf-8")


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    jobs = [f"programs:0:{PROGRAMS}", f"reshards:0:{2 * PROGRAMS}"]
    jobs += [f"sums_by_torch:9000:{PROGRAMS}"]
    jobs += [f"user_programs:0:{USER_PROGRAMS}"]
    jobs += ["refusals", "shards_in_and_out", "nested_uneven", "in_a_smaller_group"]
    found, log = launch(tmp_path_factory.mktemp("four"), 4, *jobs, processes=2)
    assert None not in found, log
    return found


def test_programs_on_4_ranks_agree_with_numpy_and_with_their_prediction(four):
    assert sum(rank["programs"]["bytes"] for rank in four) > 20 * PROGRAMS
    assert {"all_gather", "all_reduce", "reduce_scatter", "slice", "fetch"} <= {
        *four[0]["programs"]["kinds"]
    }


def test_programs_of_users_on_4_ranks_agree_with_numpy_and_with_their_prediction(four):
    assert four[0]["user_programs"]["used"]["programs"] > 0.9 * USER_PROGRAMS
    assert sum(rank["user_programs"]["bytes"] for rank in four) > 20 * USER_PROGRAMS


def test_elements_of_several_components_travel_whatever_their_strides():
    numbers = torch.arange(12).reshape(3, 4)
    whole = StructArray({"a": numbers * 0.5, "b": numbers}, 2)
    for box in ((slice(1, 2), slice(2, 3)), (slice(0, 3), slice(1, 2)), (slice(0, 0), slice(0, 4))):
        some = whole.map(torch.t)[box[::-1]]
        packed = transport._pack(some, [tuple(slice(0, n) for n in some.shape)])
        (back,) = transport._unpack(some, packed, [tuple(slice(0, n) for n in some.shape)])
        for one, two in zip(back.components, some.components):
            assert torch.equal(one, two)


def test_every_kind_of_step_is_run_and_counted(four):
    kinds = [four[0][job]["kinds"] for job in ("programs", "reshards", "sums_by_torch")]
    assert {kind for each in kinds for kind in each} == KINDS


def test_every_way_of_moving_is_taken(four):
    ways = {*four[0]["reshards"]["ways"], *four[0]["sums_by_torch"]["ways"]}
    names = ("messages", "all_gather", "all_reduce", "all_to_all", "reduce_scatter")
    assert ways == {f"by_{name}" for name in names}
    assert four[0]["reshards"]["groups"] >= 6  # such as {0, 1} and {2, 3}, made once
    assert "by_reduce_scatter" not in four[0]["reshards"]["ways"]  # gloo's moves twice as much


def test_one_dimension_cut_by_two_axes_unevenly_is_right(four):
    """The peer whose blocks nest otherwise gives wrong results here, and no error."""
    assert all(rank["nested_uneven"] for rank in four)


def test_shards_go_in_and_come_out(four):
    assert four[0]["shards_in_and_out"]["text"] == [
        "matmul: int64[8, 4] <@m, [{}, {}]>",
        'Shard(y: int64[8, 4] <@m, [{}, {}], unreduced={"x"}>, [0:8, 0:4])',
    ]


def test_a_plan_runs_in_a_smaller_group(four):
    assert "outside" not in four[0]["in_a_smaller_group"]
    assert four[3]["in_a_smaller_group"]["outside"] == [
        "WeftError",
        "rank 3 does not belong to the process group given",
    ]


X = "x: float32[8, 6]"
REFUSALS = {
    "missing": ["WeftError", "input w is missing: w: float32[6, 4]"],
    "unknown": ["WeftError", "there is no input z", "hint: the inputs are x, w"],
    "shape": ["WeftError", f"input {X} cannot have the shape [4, 6]"],
    "dtype": [
        "WeftError",
        f"input {X} cannot have the dtype float64",
        "hint: convert the array, x.astype('float32'), or trace with its dtype: "
        "weft.trace(function, array)",
    ],
    "size": [
        "WeftError",
        '@m = <["x"=5]> has 5 cells, and the process group has 4 ranks',
        "hint: a mesh has one cell for each rank",
    ],
    "devices": [
        "WeftError",
        '@m = <["x"=4], device_ids=[1, 2, 3, 4]> has the devices [1, 2, 3, 4], and the process '
        "group the ranks 0 to 3",
    ],
    "kernel": ["WeftError", "mystery has no kernel: it can be planned, not run"],
    "partial": [
        "LayoutError",
        'a whole array is not partial: input x: float32[4] is <@m, [{}], unreduced={"x"}>',
        "hint: give each rank its part as a Shard",
    ],
    "plans": [
        "RankError",
        "rank 1 runs another plan than rank 0, or lays its inputs out otherwise",
        "hint: make the plan from the same graph and the same shardings on every rank",
    ],
    "budget": [
        "CommunicationError",
        'matmul would move 768 B for matmul: float32[8, 4] <@m, [{}, {}], unreduced={"x"}>: '
        "0 + 768 B is more than the budget of 0 B",
        "hint: give the operands shardings that agree, or a larger budget",
    ],
}


@pytest.mark.parametrize("what", REFUSALS)
def test_all_ranks_refuse_alike(four, what):
    for rank in four:
        assert rank["refusals"][what] == REFUSALS[what]


def test_a_shard_of_another_shape_is_refused(four):
    for number, rank in enumerate(four):
        box = ["[0:8, 0:2]", "[0:8, 2:4]", "[0:8, 4:6]", "[0:8, 6:6]"][number]
        wanted = [8, 0 if number == 3 else 2]
        assert rank["refusals"]["shard"] == [
            "LayoutError",
            f'rank {number} holds box {box} of {X} <@m, [{{}}, {{"x"}}]>, and its shard is '
            f"[8, 3], expected {wanted}",
        ]


@pytest.mark.slow
def test_programs_on_8_ranks(tmp_path):
    jobs = [f"programs:7000:{PROGRAMS // 10}", f"reshards:7000:{PROGRAMS // 3}", "nested_uneven"]
    found, log = launch(tmp_path, 8, *jobs)
    assert None not in found, log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("dies", "Connection (reset|closed) by peer|Broken pipe"),
        ("stalls", "Timed out waiting 20000ms"),
    ],
)
def test_the_others_say_so_when_a_rank_does_not_answer(tmp_path, how, why):
    found, log = launch(tmp_path, 4, f"death:{how}:{tmp_path}")
    assert (found[1] is None) == (how == "dies")
    for rank in (0, 2, 3):
        what = (
            f"rank {rank} of 4 could not finish reduce_scatter of sum_dim: float64[8] <@m, [{{}}], "
            'unreduced={"x"}> for sum_dim: '
        )
        assert found[rank], log
        message = found[rank]["death"]["error"]
        assert message.startswith(what)
        assert re.search(why, message)


@pytest.mark.slow
def test_the_example_runs_under_torchrun():
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ran = subprocess.run(
        [*torchrun, "--nproc-per-node", "3", "-m", "examples.ranks"],
        cwd=ROOT,
        env=environment(CUDA_VISIBLE_DEVICES=""),
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    for rank in range(3):
        assert f"rank {rank} received 512 B, as planned, and holds [0:6, 0:16] of y" in ran.stdout


def test_without_a_process_group_nothing_runs():
    graph = trace(lambda x: x + 1, (4,), meshes=['@m = <["x"=1]>'])
    with pytest.raises(WeftError, match=r"there is no process group of torch\.distributed") as no:
        run_ranks(Plan.of(propagate(graph)), {"x": [1.0] * 4})
    assert no.value.__notes__ == [
        "hint: call torch.distributed.init_process_group() first, under torchrun"
    ]
    with pytest.raises(WeftError, match="there is no process group"):
        Shard(None, ShardingSpec(DeviceMesh("m", (1,), ("x",)), []), ())


def patterns(src, dst, shape, mesh):
    specs = (ShardingSpec.parse(text, mesh) for text in (src, dst))
    steps = plan_reshard(*specs, shape).steps
    return [schedule(step.route, step.kind, 0)[3:5] for step in steps]


def test_even_steps_are_collectives_along_axes():
    mesh = DeviceMesh("m", (2, 2), ("x", "y"))
    rows, whole = '<@m, [{"x"}, {}]>', "<@m, [{}, {}]>"
    along_x = ((0, 2), (1, 3))
    assert patterns(rows, whole, (8, 8), mesh) == [("all_gather", along_x)]
    columns = '<@m, [{}, {"x"}]>'
    assert patterns(rows, columns, (8, 8), mesh) == [("all_to_all", along_x)]
    assert patterns(rows, columns, (7, 5), mesh) == [("all_to_all", along_x)]
    partial = '<@m, [{}, {}], unreduced={"x"}>'
    assert patterns(partial, rows, (8, 8), mesh) == [("reduce_scatter", along_x)]


def test_uneven_steps_are_messages():
    mesh = DeviceMesh("m", (4,), ("x",))
    assert patterns('<@m, [{"x"}]>', "<@m, [{}]>", (9,), mesh) == [("", ())]
    assert patterns('<@m, [{"x"}]>', '<@m, [{"x":(2)2, "x":(1)2}]>', (8,), mesh) == [("", ())]


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False
    )


def test_torch_is_loaded_when_it_is_used():
    ran = python("import sys, weft; weft.run; assert 'torch' not in sys.modules")
    assert ran.returncode == 0, ran.stderr


def test_without_torch_an_error_says_what_to_install():
    ran = python("import sys; sys.modules['torch'] = None; import weft.runtime.torch")
    assert (
        "ModuleNotFoundError: running on many ranks needs torch, which is not installed: "
        "pip install 'weft[torch]'" in ran.stderr
    )

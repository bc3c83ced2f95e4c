"""Timelines: who did what when, in text, and to the pixel in SVG, whatever the number of tasks."""

import io
import random
import xml.etree.ElementTree as ET

import pytest
from tests.runtime.cluster.metrics import made_up, recorded, task

from weft import show
from weft.draw import to_svg
from weft.runtime.cluster.metrics.lanes import lanes_of, length_of, merged
from weft.runtime.cluster.metrics.timeline import tones_of
from weft.runtime.cluster.metrics.timeline_svg import MOST_LANES, PIXELS, SIZE_LIMIT, timeline_svg

SVG = "{http://www.w3.org/2000/svg}"


def bars(svg):
    """The rectangles of tasks: where, how wide, and what they say."""
    found = ET.fromstring(svg).iter(f"{SVG}rect")
    return [
        (float(one.get("x")), float(one.get("width")), one.find(f"{SVG}title").text)
        for one in found
        if one.find(f"{SVG}title") is not None
    ]


def texts(svg):
    return [one.text for one in ET.fromstring(svg).iter(f"{SVG}text")]


def test_a_lane_for_each_worker_and_a_rectangle_for_each_task():
    record = made_up(
        task(0, operator="input", kind="read", read=512, values="x"),
        task(1, received={1: 64}, worker="host:2"),
        task(2, begin=1005.0, seconds=5.0, worker="host:2", sent=7, written=3),
    )
    svg = timeline_svg(record)
    (one, two, three) = bars(svg)
    assert one[2] == "0: read input [0:8, 0:4] on cell 0: 1 s, 512 B read"
    assert two[2] == "1: compute matmul [0:8, 0:4] on cell 0: 1 s, 64 B received"
    assert three[2] == "2: compute matmul [0:8, 0:4] on cell 0: 5 s, 7 B sent, 3 B written"
    assert two[0] - one[0] == pytest.approx(PIXELS / 10, abs=0.1)
    assert three[1] == pytest.approx(PIXELS / 2, abs=0.1)
    assert {"host:1", "host:2", "matmul", "input", "0", "2.5 s", "10 s"} <= set(texts(svg))
    assert "prefers-color-scheme:dark" in svg


def test_in_text():
    record = made_up(
        task(0, operator="input"),
        task(1, begin=1001.0, seconds=9.0),
        task(2, begin=1005.0, seconds=5.0, worker="host:2", operator="a longer name"),
    )
    stream = io.StringIO()
    show(record, file=stream)
    assert stream.getvalue().splitlines() == [
        "3 tasks on ray, 2 workers: 10 s, busy 15 s, overhead 5 s",
        "        0                                                                   10 s",
        "        ┌───────┬───────────────────────────────────────────────────────────────┐",
        "host:1  │ input │                            matmul                             │",
        "        ├───────┴───────────────────────────┬───────────────────────────────────┤",
        "host:2  │                                   │           a longer name           │",
        "        ╵                                   └───────────────────────────────────┘",
        "received 0 B, as predicted",
    ]
    assert to_svg(record.drawing()).startswith("<svg")
    assert record._repr_html_().startswith("<svg")


def test_time_that_is_not_computing_is_seen():
    quiet, busy = made_up(task(0)), made_up(task(0, receiving=0.1, reading=0.2, writing=0.3))
    assert "<path" not in timeline_svg(quiet)
    svg = timeline_svg(busy)
    paths = {p.get("class"): p.get("d") for p in ET.fromstring(svg).iter(f"{SVG}path")}
    assert list(paths) == ["receiving", "reading", "writing"]
    assert "h19.2v3h-19.2z" in paths["reading"]  # 0.2 s of 10 s
    assert {"waits for others", "reads storage", "writes storage"} <= set(texts(svg))
    assert not {"reads storage"} & set(texts(timeline_svg(quiet)))


def test_attempts_that_were_made_again_are_seen():
    record = made_up(task(3, begin=1004.0), again=(task(3, worker="gone:9"),))
    svg = timeline_svg(record)
    assert bars(svg)[1][2].endswith(": 1 s, made again")
    assert {"gone:9", "made again"} <= set(texts(svg))


def test_tasks_at_a_time_of_one_worker_lie_side_by_side():
    tasks = [task(n, begin=1000.0 + n / 2, seconds=1.0) for n in range(8)]
    lanes = lanes_of(made_up(*tasks), 1e-3)
    assert [lane.worker for lane in lanes] == ["host:1"] * 2
    assert [[span.tasks[0].number for span in lane.spans] for lane in lanes] == [
        [0, 2, 4, 6],
        [1, 3, 5, 7],
    ]


def test_clocks_that_differ_leave_no_task_out():
    early, late = task(0, begin=900.0), task(1, begin=2000.0)
    assert length_of(made_up(early, late)) == 1101.0
    assert [x >= 0 for x, _, _ in bars(timeline_svg(made_up(early, late)))] == [True, True]


def test_what_is_short_is_merged_and_nothing_is_lost():
    rng = random.Random(0)
    spans, at = [], 1000.0
    for number in range(5000):
        seconds = rng.choice([1e-5, 1e-4, 1e-2])
        at += rng.choice([0, 1e-5, 1e-3])
        name = rng.choice("ab")
        spans.append(task(number, begin=at, seconds=seconds, operator=name))
        at += seconds
    (lane,) = lanes_of(made_up(*spans, seconds=at - 1000), grain=5e-3)
    assert [one.number for span in lane.spans for one in span.tasks] == list(range(5000))
    for one, two in zip(lane.spans, lane.spans[1:], strict=False):
        assert one.end <= two.begin + 1e-9
        assert len(one.tasks) == 1 or one.end - one.begin < 5e-3
    assert len(lane.spans) < 4000
    assert list(merged([], 1.0)) == []


@pytest.mark.parametrize(("workers", "count"), [(1, 3000), (16, 20_000), (300, 6000)])
def test_thousands_of_tasks_stay_small(workers, count):
    rng = random.Random(1)
    tasks = [
        task(
            n,
            begin=1000 + rng.random() * 9,
            seconds=rng.random() * 0.1,
            operator=f"<operator & {n % 20}>",
            worker=f"host:{n % workers}",
            received={1: n},
        )
        for n in range(count)
    ]
    record = made_up(*tasks, workers=workers)
    svg = timeline_svg(record)
    assert len(svg.encode()) <= SIZE_LIMIT
    assert len(bars(svg)) > 100
    assert "<operator & " in " ".join(texts(svg))
    if workers > MOST_LANES:
        assert any("more lanes are not drawn" in text for text in texts(svg))
    assert len(record._repr_html_()) <= 20_000


def test_operators_that_take_most_are_told_apart():
    tasks = [task(n, operator=f"op{n}", seconds=1.0 + n) for n in range(12)]
    tones = tones_of(made_up(*tasks, seconds=20.0))
    assert (tones["op11"], tones["op5"]) == (0, 6)
    assert {tones[f"op{n}"] for n in range(5)} == {7}
    assert "op4 and 4 more" in texts(timeline_svg(made_up(*tasks, seconds=20.0)))


def test_a_measured_run_and_an_empty_one():
    record = recorded()
    assert len(bars(timeline_svg(record))) > 0
    for empty in (made_up(), made_up(seconds=0.0)):
        assert bars(timeline_svg(empty)) == []
        show(empty, file=io.StringIO())
    assert len(bars(timeline_svg(made_up(task(0, seconds=0.0, worker=""))))) == 1

"""What a worker measures around a task: time, processors, memory, and what it costs to know."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from weft.runtime.cluster.metrics import meter as module
from weft.runtime.cluster.metrics.meter import Meter

MIB = 1 << 20


@pytest.fixture
def can_reset_peak():
    if not module.reset_peak():
        pytest.skip("this system cannot reset the peak memory of a process")


def spend(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_time_and_processors_of_a_process():
    before = time.time()
    with Meter(3) as meter:
        helper = threading.Thread(target=spend, args=(0.05,))
        helper.start()
        spend(0.02)
        helper.join()
    report = meter.report()
    assert report.task == 3
    assert before <= report.begin <= time.time()
    assert report.seconds > 0
    assert report.cpu >= 0.069
    assert report.worker.endswith(f":{os.getpid()}")
    assert len(report.worker) > len(f":{os.getpid()}")


def test_a_task_that_shares_its_process_has_its_own_thread_alone():
    with Meter(0, alone=False) as meter:
        helper = threading.Thread(target=spend, args=(0.2,))
        helper.start()
        helper.join()
    assert meter.report().cpu < 0.2
    assert meter.report().worker == threading.current_thread().name


def test_tasks_that_meet_in_a_process_are_seen():
    with Meter(0) as one:
        with Meter(1) as two:
            spend(0.001)
        spend(0.001)
    assert not one.alone
    assert not two.alone
    with Meter(2) as later:
        pass
    assert later.alone


def test_parts_and_bytes():
    with Meter(0) as meter:
        for _ in range(2):
            with meter.part("reading"):
                time.sleep(0.002)
        with meter.part("writing"):
            meter.written += 7
        meter.received[3] = 40
    report = meter.report()
    assert 0.004 <= report.reading <= report.seconds
    assert 0 < report.writing <= report.seconds - report.reading
    assert (report.receiving, report.written, report.read, report.received) == (0, 7, 0, {3: 40})


def test_a_part_that_fails_is_counted():
    with Meter(0) as meter, pytest.raises(OSError, match="gone"), meter.part("reading"):
        raise OSError("gone")
    assert meter.report().reading > 0


@pytest.mark.usefixtures("can_reset_peak")
def test_the_peak_is_that_of_the_task():
    with Meter(0) as large:
        np.ones(64 * MIB // 8)
    with Meter(1) as small:
        pass
    assert large.report().peak - small.report().peak > 48 * MIB
    assert not large.report().is_bound


@pytest.mark.usefixtures("can_reset_peak")
def test_a_task_that_begins_meanwhile_takes_nothing_from_the_peak():
    with Meter(0) as outer:
        np.ones(64 * MIB // 8)
        with Meter(1) as inner:
            pass
    assert outer.report().peak - inner.report().peak > 48 * MIB


def test_where_the_peak_cannot_be_reset_it_is_a_bound(monkeypatch):
    np.ones(64 * MIB // 8)
    monkeypatch.setattr(module, "reset_peak", lambda: False)
    with Meter(0) as meter:
        pass
    assert meter.report().is_bound
    assert meter.report().peak > 0


def test_without_the_files_of_linux(monkeypatch):
    assert module._open("/nowhere/status", os.O_RDONLY) is None
    monkeypatch.setattr(module, "_files", lambda process: (None, None))
    with Meter(0) as meter:
        pass
    assert meter.report().is_bound
    assert meter.report().peak > MIB
    monkeypatch.setattr(module, "resource", None)
    assert module.peak_memory(False) == (0, True)


def test_a_child_of_a_fork_counts_for_itself():
    code = """
import os
from weft.runtime.cluster.metrics.meter import Meter
outer = Meter(0)
outer.__enter__()
child = os.fork()
if not child:
    with Meter(1) as meter:
        data = bytearray(b"x" * (64 << 20))
    report = meter.report()
    right = report.worker.endswith(f":{os.getpid()}") and meter.alone
    os._exit(0 if right and (report.is_bound or report.peak > 64 << 20) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "0"

"""The file lock: never two holders, none after a kill, and nothing but its own file touched."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.trials import trials

from weft.errors import WeftError
from weft.store.lock import FileLock, LockedError

ATTEMPTS = trials(3000)
"""Attempts of each of eight processes."""

CONTEST = """
    import os, sys
    from weft.store.lock import FileLock, LockedError

    # Whoever holds the lock makes a file that must not be there yet: the kernel is the referee.
    path, attempts = sys.argv[1], int(sys.argv[2])
    children = []
    for _ in range(8):
        child = os.fork()
        if child:
            children.append(child)
            continue
        held = 0
        while attempts > 0 or not held:
            attempts -= 1
            try:
                lock = FileLock(path)
            except LockedError:
                os.sched_yield()
                continue
            try:
                os.close(os.open(path + ".inside", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            except FileExistsError:
                os._exit(3)
            held += 1
            os.unlink(path + ".inside")
            lock.release()
        os._exit(0)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    print(codes, os.listdir(os.path.dirname(path)))
"""

HOLDER = """
    import os, sys, time
    from weft.store.lock import FileLock

    lock = FileLock(sys.argv[1])
    if sys.argv[2] == "forked" and os.fork() == 0:
        lock.release()  # not the child's to release
        time.sleep(600)
        os._exit(0)
    print(os.getpid(), flush=True)
    time.sleep(600)
"""


def start(script: str, *args: object) -> "subprocess.Popen[str]":
    """A fresh interpreter, in a process group of its own, that runs a script."""
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)


def test_eight_processes_never_hold_it_at_the_same_time(tmp_path: Path) -> None:
    ended = start(CONTEST, tmp_path / "lock", ATTEMPTS)
    found, _ = ended.communicate()
    assert found.strip() == f"{[0] * 8} []"


def taken_after_death(path: Path) -> FileLock:
    """Take the lock once its holder is gone; a process may take a moment to end."""
    for _ in range(600):
        with suppress(LockedError):
            return FileLock(path)
        time.sleep(0.1)
    return FileLock(path)


@pytest.mark.parametrize("kind", ["alone", "forked"])
def test_a_holder_that_is_killed_holds_nothing(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "lock"
    holder = start(HOLDER, path, kind)
    assert holder.stdout is not None
    try:
        pid = int(holder.stdout.readline())
        with pytest.raises(LockedError, match="lock is locked by another writer") as caught:
            FileLock(path)
        assert f"process {pid} on " in caught.value.__notes__[0]
        os.kill(pid, signal.SIGKILL)
        holder.wait()
        assert path.exists()  # the file stays, and means nothing
        taken_after_death(path).release()
        assert not path.exists()
    finally:
        with suppress(ProcessLookupError):  # all of them have ended
            os.killpg(holder.pid, signal.SIGKILL)
        holder.stdout.close()


def test_a_lock_whose_file_was_replaced_is_not_taken_for_held(tmp_path: Path) -> None:
    """A file that lost its name locks nothing, and the file that has the name now is left alone."""
    path = tmp_path / "lock"
    first = FileLock(path)
    path.unlink()
    second = FileLock(path)
    first.release()
    assert path.exists()
    with pytest.raises(LockedError):
        FileLock(path)
    second.release()
    assert not path.exists()


def test_it_is_held_once_in_a_process_and_released_with_its_block(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with FileLock(path) as lock:
        assert lock.is_held
        with pytest.raises(LockedError, match=r"^a\.zarr is locked by another writer"):
            FileLock(path, what="a.zarr")
    assert not lock.is_held
    lock.release()
    FileLock(path).release()


@pytest.mark.parametrize("kind", ["link", "broken link", "folder", "pipe"])
def test_files_that_are_not_locks_are_refused_and_left_alone(tmp_path: Path, kind: str) -> None:
    path, precious = tmp_path / "lock", tmp_path / "precious"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        if kind == "link":
            precious.write_text("data")
        path.symlink_to(precious)
    with pytest.raises(WeftError, match="lock is not a lock file: it is not a regular file"):
        FileLock(path)
    assert os.path.lexists(path)
    assert precious.exists() == (kind == "link")
    assert kind != "link" or precious.read_text() == "data"


def test_a_lock_is_lost_with_its_file_and_not_by_its_release(tmp_path: Path) -> None:
    """Another thread may ask while the holder releases it."""
    lock = FileLock(tmp_path / "lock")
    (tmp_path / "lock").unlink()
    assert lock.is_lost
    lock.release()
    assert not lock.is_lost
    answers = []
    for _ in range(200):
        lock = FileLock(tmp_path / "lock")
        asking = threading.Thread(target=lambda lock=lock: answers.append(lock.is_lost))
        asking.start()
        lock.release()
        asking.join()
    assert not any(answers)

"""Disks of some bytes, for what happens when one is full."""

import shutil
import subprocess
from contextlib import contextmanager

import pytest


def _fails(command):
    return subprocess.run(command, capture_output=True, check=False).returncode != 0


@contextmanager
def tmpfs(path, size):
    """A disk of some bytes, or a skip where nobody may mount one."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    if shutil.which("mount") is None or _fails(command):
        pytest.skip("no file system can be mounted")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)

"""Memory that a strategy frees, and that the system has again at once."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from jupyter_dtrain.cluster.launch_config import MALLOC
from jupyter_dtrain.engine.strategies.zero3.buffers import size_of_most

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")

PROGRAM = """
import sys
from pathlib import Path
from jupyter_dtrain.system.resources import give_back_at_once

def held():
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0]) >> 10

def kept():
    before = held()
    blocks = [bytearray(8 << 20) for _ in range(16)]
    for block in blocks:
        memoryview(block)[::4096] = bytes(len(block) // 4096)
    assert held() - before > 100
    del block, blocks
    return held() - before

give_back_at_once(2 << 20)
at_once = kept()
give_back_at_once(None)
print(at_once, kept())
"""


def test_large_blocks_go_back_to_the_system_only_while_that_is_asked_for():
    environment = {**os.environ, **MALLOC}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60, check=True)
    at_once, kept = map(int, done.stdout.split())
    assert at_once < 8  # MiB
    assert kept > 64


def test_size_of_most():
    assert size_of_most([]) == 0
    assert size_of_most([4] * 11) == 4
    assert size_of_most([100, 2, 2, 2]) == 100
    assert size_of_most([100, *[2] * 50]) == 2

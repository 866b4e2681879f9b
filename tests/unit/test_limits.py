"""What a container leaves of the machine: cores and memory."""

from __future__ import annotations

import os
from collections import namedtuple

import psutil
import pytest

from jupyter_dtrain.system import resources

Host = namedtuple("Host", "available total")


@pytest.mark.parametrize(("text", "expected"), [("150000 100000", 1.5), ("max 100000", float("inf"))])
def test_a_container_quota_of_cores(tmp_path, text, expected):
    (tmp_path / "membership").write_text("0::/outer/inner\n")
    (tmp_path / "outer/inner").mkdir(parents=True)
    (tmp_path / "outer/cpu.max").write_text(text)
    (tmp_path / "outer/inner/cpu.max").write_text("400000 100000")
    assert resources.cores_of_groups(tmp_path, tmp_path / "membership") == min(expected, 4.0)


def test_a_quota_of_the_older_control_groups(tmp_path):
    (tmp_path / "membership").write_text("4:memory:/m\n3:cpu,cpuacct:/not/in/here\n")
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("250000")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000")
    assert resources.cores_of_groups(tmp_path, tmp_path / "membership") == 2.5


def test_no_more_cores_than_this_process_may_use():
    assert 1 <= resources.usable_cores() <= (os.cpu_count() or 1)


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def host(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Host(6000, 10000))


def group(folder, limit, used, read_again=0, *, names=("memory.max", "memory.current"), prefix=""):
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in zip(names, (limit, used), strict=True):
        (folder / name).write_text(f"{value}\n")
    (folder / "memory.stat").write_text(f"anon 17\n{prefix}inactive_file {read_again}\n{prefix}active_file 0\n")


@pytest.mark.usefixtures("host")
@pytest.mark.parametrize(
    ("limit", "used", "read_again", "left", "total"),
    [(1000, 900, 0, 100, 1000), (1000, 900, 300, 400, 1000), (9000, 100, 0, 6000, 10000), ("max", 900, 0, 6000, 10000)],
)
def test_a_container_has_what_its_limit_leaves(tmp_path, limit, used, read_again, left, total):
    (tmp_path / "membership").write_text("0::/not/in/here\n")
    group(tmp_path, limit, used, read_again)
    assert resources.memory(tmp_path, tmp_path / "membership") == resources.Memory(left, total)


@pytest.mark.usefixtures("host")
def test_the_group_that_leaves_least_counts(tmp_path):
    (tmp_path / "membership").write_text("0::/outer/inner\n")
    group(tmp_path / "outer", 2000, 1900)
    group(tmp_path / "outer/inner", 1000, 100)
    assert resources.memory(tmp_path, tmp_path / "membership").available_fraction == 0.05


@pytest.mark.usefixtures("host")
def test_memory_in_the_older_control_groups(tmp_path):
    (tmp_path / "membership").write_text("4:memory:/m\n3:cpu,cpuacct:/m\n")
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    group(tmp_path / "memory/m", 1000, 800, 50, names=names, prefix="total_")
    assert resources.memory(tmp_path, tmp_path / "membership").left == 250


@pytest.mark.usefixtures("host")
def test_a_host_without_control_groups_has_what_is_available(tmp_path):
    assert resources.memory(tmp_path, tmp_path / "membership") == resources.Memory(6000, 10000)


def test_no_more_memory_than_there_is():
    assert 0 < resources.memory().left <= psutil.virtual_memory().total

"""Return the cores and the memory that this process may use, of the host or of its control groups if those allow less.

A container's limits are those of a control group. The files of both Linux versions (v1 and v2) are read here.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointError

GROUPS, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_READ_AGAIN = ("inactive_file", "active_file")  # page cache, which the kernel reclaims if needed

_M_MMAP_THRESHOLD, _M_MMAP_MAX = -3, -4  # of <malloc.h>
_MMAP_MAX = 1 << 16  # glibc's default
MOST_AT_ONCE = 1 << 25
"""glibc's maximum for the size from which on it allocates memory outside the heap."""


@dataclass(frozen=True)
class Memory:
    """Available and total bytes."""

    left: int
    total: int

    @property
    def available_fraction(self) -> float:
        """The fraction that is available."""
        return self.left / self.total


def usable_cores() -> int:
    """Return the number of cores that this process may use: its CPU affinity, and a container's quota."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(affinity, cores_of_groups(GROUPS, MEMBERSHIP))))


def cores_of_groups(root: Path, membership: Path) -> float:
    """Return the cores that the control groups of this process allow: the minimum along the path, infinite without a limit."""
    groups = _groups("cpu", root, membership)
    return min((_quota_v1(folder) if version_1 else _quota_v2(folder) for folder, version_1 in groups), default=math.inf)


def memory(root: Path = GROUPS, membership: Path = MEMBERSHIP) -> Memory:
    """Return the memory that this process can still allocate: the host's, or that of the control group with the least available."""
    import psutil  # imported here, so that loading the extension does not import it

    host = psutil.virtual_memory()
    limits = [Memory(host.available, host.total)]
    for folder, version_1 in _groups("memory", root, membership):
        found = _memory_of(folder, "memory.limit_in_bytes", "memory.usage_in_bytes") if version_1 else _memory_of(folder)
        if found is not None and found.total < host.total:
            limits.append(found)
    return min(limits, key=lambda limit: limit.left)


def give_back() -> None:
    """Return unused memory to the host, as C's allocator keeps what is freed, and fragments between small objects for good."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # glibc only
        trim(0)


def give_back_at_once(smallest: int | None) -> None:
    """Return memory blocks of at least `smallest` bytes, up to 32 MiB, to the system as soon as they are freed; ``None``: the default.

    Such blocks are allocated outside the heap. A small object that is put into the hole of a freed large block makes it too small for the
    next large one: the heap would grow as if nothing were ever freed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # not glibc
        return
    if smallest is None:
        mallopt(_M_MMAP_MAX, int(os.environ.get("MALLOC_MMAP_MAX_", _MMAP_MAX)))
    else:
        mallopt(_M_MMAP_MAX, _MMAP_MAX)
        mallopt(_M_MMAP_THRESHOLD, min(smallest, MOST_AT_ONCE))


def _groups(controller: str, root: Path, membership: Path) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of this process's control groups, from its own outwards, and whether each is of version 1."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        version_1 = controller in controllers.split(",")
        if controllers and not version_1:
            continue
        base = root / controller if version_1 else root
        group = base / path.lstrip("/")
        # Inside a container the path may be the host's: then only the root exists, and is the container's own group.
        for folder in (group, *group.parents):
            if folder == base or base in folder.parents:
                yield folder, version_1


def _memory_of(folder: Path, limit: str = "memory.max", usage: str = "memory.current") -> Memory | None:
    try:
        total, used = (int((folder / name).read_text()) for name in (limit, usage))
        figures = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # the files do not exist, or the limit is "max"
        return None
    used -= sum(int(figures.get(f"total_{name}", figures.get(name, 0))) for name in _READ_AGAIN)
    return Memory(max(0, total - used), total)


def _quota_v2(folder: Path) -> float:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return math.inf


def _quota_v1(folder: Path) -> float:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        return math.inf if quota <= 0 else quota / int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError):
        return math.inf


# Out of memory or disk: recognize the error, and advise.

PLAN = "`%distribute plan` says what each strategy takes."
ON_DEVICE = (
    "The device has no room for this step. A smaller batch_size takes less of it, and so do more engines, which share each batch; "
    f"`torch.autocast` in bfloat16 halves the activations. {PLAN}"
)
ON_HOST = (
    "A smaller batch_size takes less memory, and so do fewer engines, as each has a model and an optimizer of its own; "
    "data that is read when it is needed (`np.load(..., mmap_mode='r')`, a Dataset that opens files) takes none before. "
    f"{PLAN}"
)
AFTER_KERNEL = (
    "An operation on the GPU has failed, which is noticed later than it happens: with CUDA_LAUNCH_BLOCKING=1 in the environment before the "
    "engines start, the line is the right one. A process can use its GPU no more after that, so other engines take the place of these."
)
DISK = 1.1
"""Required free disk space, as a multiple of what is written."""
OVERFLOW = ".overflow"
"""Name of a link in a folder of shared memory; it leads to a folder on disk for what does not fit."""
_ASKED = re.compile(r"you tried to allocate (\d+) bytes")
_HOST_ERRORS = ("MemoryError", "_ArrayMemoryError")  # Python's and NumPy's


def advice_for(name: str, message: str) -> str | None:
    """Return advice for an error with this type name and message; ``None`` if it is neither about memory nor a GPU error."""
    if name == "OutOfMemoryError":
        return ON_DEVICE
    if "CUDA error: " in message:
        return AFTER_KERNEL
    if name not in _HOST_ERRORS and "DefaultCPUAllocator" not in message:
        return None
    asked = _ASKED.search(message)
    wanted = f"{size_text(int(asked[1]))} were asked for at once. " if asked else ""
    return f"{wanted}{ON_HOST}"


def check_disk(folder: Path, num_bytes: int, *, what: str) -> None:
    """Raise a `CheckpointError` if the disk of `folder` has no space for `num_bytes` more, which `what` describes."""
    needed, free = DISK * num_bytes, shutil.disk_usage(folder).free
    if needed > free:
        raise CheckpointError(f"There is no room for {what} in {folder}: {size_text(needed)} are needed, and {size_text(free)} are free.")


def size_text(num_bytes: float) -> str:
    """Return a number of bytes in a suitable unit: ``1.5 MiB``, ``64.0 GiB``, ``200 KiB``."""
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if num_bytes >= size:
            number = num_bytes / size
            return f"{number:.1f} {unit}" if number < 100 else f"{number:,.0f} {unit}"
    return f"{num_bytes:.0f} B"

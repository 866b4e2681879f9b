"""Utilization of a rank's device: of its GPU by NVML, of its process by the operating system.

A sample takes at most a millisecond or two, so that one can be taken every second beside a training loop. Values that the machine does
not provide are zero: a missing number in the sidebar must never end a run.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from pathlib import Path
from typing import Any

import psutil

from ...protocol import DeviceUse, Message
from ...system import resources

DEVICE_NAME = "JUPYTER_DTRAIN_DEVICE_NAME"  # set by the cluster, which knows the hardware without asking torch
PROPORTIONAL_SHARE = 0.01
"""Largest part of the time that may be spent on measuring shared memory."""
SHORTEST = 0.1
"""Shortest time in seconds over which an average is meaningful."""


class DeviceSampler:
    """Samples the device of one rank. Not thread-safe.

    Parameters
    ----------
    rank : int
        The rank in the samples.
    device : torch.device or str
        The rank's device, or torch's name of it (``"cpu"``, ``"cuda:0"``).
    """

    def __init__(self, rank: int, device: object = "cpu") -> None:
        self.rank = rank
        name = str(device)
        self._source: _GpuUse | _CpuUse = _GpuUse(name) if name.startswith("cuda") else _CpuUse()
        self._last = time.monotonic()

    def start(self, rank: int) -> None:
        """Sample for `rank` from now on."""
        self.rank = rank
        self._source.start()
        self._last = time.monotonic()

    def device_name(self) -> str:
        """Return the name of the hardware."""
        return os.environ.get(DEVICE_NAME) or platform.processor() or platform.machine() or "CPU"

    def due(self) -> list[Message]:
        """Return a sample, or none shortly after the last one."""
        return [self.sample()] if time.monotonic() - self._last >= SHORTEST else []

    def sample(self) -> DeviceUse:
        """Return the use of the device; on CPU the utilization is an average since the last sample."""
        self._last = time.monotonic()
        utilization, memory_used, memory_total = self._source.read()
        temperature, power = self._source.heat()
        return DeviceUse(
            rank=self.rank,
            time=time.time(),
            utilization=utilization,
            memory_used=memory_used,
            memory_total=memory_total,
            temperature=temperature,
            power=power,
        )


class _CpuUse:
    """Use of the CPU by the engine's process and its children (a loader's workers), relative to its cores."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._cores = _own_cores()
        self._memory_total = resources.memory().total
        self._children: dict[int, psutil.Process] = {}
        self._counted_twice = 0  # bytes, when they were last counted
        self._count_again = 0.0
        self.start()

    def start(self) -> None:
        """Begin the next average."""
        self._before = (time.monotonic(), self._seconds_and_memory()[0])

    def read(self) -> tuple[float, int, int]:
        """Return utilization in percent, and bytes used and available."""
        seconds, memory = self._seconds_and_memory()
        now = time.monotonic()
        since, seconds_before = self._before
        self._before = (now, seconds)
        # A worker that was not waited for takes its seconds with it; less than before means "unknown", not "negative".
        busy = max(0.0, seconds - seconds_before) / max(now - since, 1e-6) / self._cores
        return min(100.0, 100.0 * busy), self._once(memory), self._memory_total

    def heat(self) -> tuple[float | None, float | None]:
        """Return temperature and power: not known of a process."""
        return None, None

    def _seconds_and_memory(self) -> tuple[float, int]:
        seconds, memory = 0.0, 0
        for process in (self._process, *self._descendants()):
            # A child may end at any moment.
            with contextlib.suppress(psutil.Error, OSError):
                times = process.cpu_times()
                # Those of ended children are in their parent's account.
                seconds += times.user + times.system + times.children_user + times.children_system
                memory += process.memory_info().rss
        return seconds, memory

    def _once(self, resident: int) -> int:
        """Return the memory of the processes in bytes; of memory that they share, only their proportional part.

        Linux walks over all pages for this, which takes 50 ms per gigabyte. Until the next such walk, the shared part found by the last one
        is subtracted from the resident memory.
        """
        began = time.monotonic()
        if began >= self._count_again:
            proportional = [_proportional(pid) for pid in (self._process.pid, *self._children)]
            self._counted_twice = max(0, resident - sum(proportional)) if all(proportional) else 0
            now = time.monotonic()
            self._count_again = now + (now - began) / PROPORTIONAL_SHARE
        return min(self._memory_total, max(0, resident - self._counted_twice))

    def _descendants(self) -> list[psutil.Process]:
        pids: list[int] = []
        if Path("/proc/self/task").exists():
            left = [self._process.pid]
            while left:
                below = _children(left.pop())
                pids += below
                left += below
        else:
            with contextlib.suppress(psutil.Error):
                pids = [child.pid for child in self._process.children(recursive=True)]
        known = self._children
        self._children = {}
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                self._children[pid] = known.get(pid) or psutil.Process(pid)
        return list(self._children.values())


class _GpuUse:
    """Use of the GPU as NVML reports it, by all processes."""

    def __init__(self, device: str) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        self._device = device
        with contextlib.suppress(Exception):  # NVML's errors are many, and none is a reason to end a run
            import pynvml

            pynvml.nvmlInit()
            self._handle = _handle(pynvml, device)
            self._nvml = pynvml

    def start(self) -> None:
        """Do nothing: NVML reports the present moment."""

    def read(self) -> tuple[float, int, int]:
        """Return utilization in percent, and bytes used and total."""
        utilization, used, total = 0.0, 0, 0
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
                used, total = int(memory.used), int(memory.total)
            with contextlib.suppress(self._nvml.NVMLError):  # MIG devices have no utilization
                utilization = float(self._nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
        if not total:
            used, total = _memory_by_torch(self._device)
        return utilization, used, total

    def heat(self) -> tuple[float | None, float | None]:
        """Return temperature in °C and power in W, ``None`` if the device does not report them."""
        temperature: float | None = None
        power: float | None = None
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                temperature = float(self._nvml.nvmlDeviceGetTemperature(self._handle, self._nvml.NVML_TEMPERATURE_GPU))
            with contextlib.suppress(self._nvml.NVMLError):
                power = self._nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000  # milliwatts
        return temperature, power


def _handle(nvml: Any, device: str) -> Any:
    """Return NVML's handle of a `device` of torch, by its entry in ``CUDA_VISIBLE_DEVICES`` or its UUID."""
    number = int(device.partition(":")[2] or 0)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    entry = visible.split(",")[number].strip() if visible else str(number)
    if entry.startswith(("GPU-", "MIG-")):
        try:
            return nvml.nvmlDeviceGetHandleByUUID(entry)
        except nvml.NVMLError:
            pass  # the beginning of a UUID is enough for CUDA
    # CUDA may count in another order than NVML: torch knows the UUID.
    import torch

    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    try:
        return nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError:
        return nvml.nvmlDeviceGetHandleByIndex(int(entry))


def _memory_by_torch(device: str) -> tuple[int, int]:
    with contextlib.suppress(Exception):
        import torch

        free, total = torch.cuda.mem_get_info(device)
        return total - free, total
    return 0, 0


def _proportional(pid: int) -> int:
    """Return the proportional set size of a process in bytes; 0 if it cannot be read."""
    with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:  # noqa: PTH123
        for line in file:
            if line.startswith(b"Pss:"):
                return 1024 * int(line.split()[1])
    return 0


def _own_cores() -> int:
    """Return the number of cores of this engine: its threads, as planned by the cluster."""
    try:
        planned = int(os.environ.get("OMP_NUM_THREADS", ""))
    except ValueError:
        planned = 0
    return planned if planned > 0 else os.cpu_count() or 1


def _children(pid: int) -> list[int]:
    """Return the children of a process, which Linux lists by thread: cheaper than a look at every process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - this runs every second
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:  # noqa: PTH123
                found += [int(child) for child in file.read().split()]
    return found

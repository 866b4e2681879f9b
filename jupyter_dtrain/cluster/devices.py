"""Plan the device of each rank: count GPUs and cores without importing torch.

NVML finds the GPUs: the driver's library, which creates no CUDA context (that would cost memory and forbid forking). A machine without a
driver has no GPUs.
"""

from __future__ import annotations

import functools
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..errors import UsageError
from ..system.resources import memory, size_text, usable_cores
from .gpus import Gpu, torch_has_cuda, visible_gpus

if TYPE_CHECKING:
    from ..cluster_options import ClusterOptions

MANY = 8  # number of engines that is never refused, so that a cell can be tried on a laptop
ENGINES_PER_CORE = 4
BYTES_OF_ENGINE = 300 << 20  # of an engine that has imported torch
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class DevicePlan:
    """The device of one rank.

    Attributes
    ----------
    rank : int
    kind : {"cpu", "cuda"}
    index : str, optional
        The GPU as ``CUDA_VISIBLE_DEVICES`` names it (a number or a UUID); ``None`` on CPU.
    name : str
        The hardware's name.
    num_threads : int
        Threads for CPU operations.
    """

    rank: int
    kind: Literal["cpu", "cuda"]
    index: str | None
    name: str
    num_threads: int

    @property
    def device(self) -> str:
        """Torch's name of the device in the engine, which sees no other."""
        return "cpu" if self.kind == "cpu" else "cuda:0"

    def environment(self) -> dict[str, str]:
        """Return the environment variables that assign the device to the engine."""
        variables = dict.fromkeys(THREAD_VARIABLES, str(self.num_threads))
        variables["CUDA_VISIBLE_DEVICES"] = self.index or ""  # empty hides all GPUs, so that a cell sees the same on every rank
        variables["JUPYTER_DTRAIN_RANK"] = str(self.rank)
        variables["JUPYTER_DTRAIN_DEVICE_NAME"] = self.name
        return variables


def plan_devices(options: ClusterOptions) -> list[DevicePlan]:
    """Return one plan per rank.

    Raises
    ------
    UsageError
        There are fewer GPUs than engines asked for, far too few cores or too little memory, or ``cuda`` was asked for and this machine or
        PyTorch does not have it.
    """
    part, num_parts = options.part
    gpus = visible_gpus() if options.device != "cpu" else []
    gpus = _part_of(gpus, part, num_parts, shared=options.devices == "shared")
    cores = max(1, usable_cores() // num_parts)
    if options.device == "auto" and not torch_has_cuda():
        gpus = []
    if gpus or options.device == "cuda":
        _check_gpus(options, gpus)
    if gpus:
        gpus = _one_each(gpus, options)
        num_threads = _share(cores, len(gpus))
        return [
            DevicePlan(rank=rank, kind="cuda", index=gpu.index, name=gpu.name, num_threads=num_threads) for rank, gpu in enumerate(gpus)
        ]
    num_engines = options.num_engines or max(2, cores // 2)
    _check_room(options, num_engines, cores)
    num_threads = _share(cores, num_engines)
    name = cpu_name()
    return [DevicePlan(rank=rank, kind="cpu", index=None, name=name, num_threads=num_threads) for rank in range(num_engines)]


def shares_devices(plans: Sequence[DevicePlan]) -> bool:
    """Return whether any of these ranks share a GPU."""
    used = [plan.index for plan in plans if plan.index is not None]
    return len(set(used)) < len(used)


def _part_of(gpus: list[Gpu], part: int, num_parts: int, *, shared: bool) -> list[Gpu]:
    """Return the GPUs of one of equal parts of the machine. If GPUs are shared and parts outnumber them, parts share GPUs."""
    if shared and gpus and num_parts > len(gpus):
        return [gpus[part * len(gpus) // num_parts]]
    return gpus[part * len(gpus) // num_parts : (part + 1) * len(gpus) // num_parts]


def _one_each(gpus: list[Gpu], options: ClusterOptions) -> list[Gpu]:
    """Return the GPU of each engine; adjacent engines share one if there are more engines than GPUs."""
    if options.devices == "exclusive":
        return gpus[: options.num_engines or len(gpus)]
    num_engines = options.num_engines or max(2, len(gpus))
    gpus = gpus[:num_engines]
    return [gpus[rank * len(gpus) // num_engines] for rank in range(num_engines)]


def _check_room(options: ClusterOptions, num_engines: int, cores: int) -> None:
    """Raise a `UsageError` if the machine has too few cores or too little memory for `num_engines` engines."""
    if options.force or options.num_engines is None or num_engines <= MANY:
        return
    left = memory().left
    most = max(MANY, min(ENGINES_PER_CORE * cores, left // BYTES_OF_ENGINE))
    if num_engines <= most:
        return
    raise UsageError(
        f"--engines {num_engines}: that is too many for this machine, which has {cores} core{'s' if cores > 1 else ''} and "
        f"{size_text(left)} of memory left; an engine takes about {size_text(BYTES_OF_ENGINE)} before it has any data. "
        f"Use --engines {most} or fewer, or add --force."
    )


def _share(cores: int, num_engines: int) -> int:
    """Return the threads per engine: its part of the cores, or fewer if ``OMP_NUM_THREADS`` says so."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores // num_engines, int(wanted) if wanted.isdigit() else cores))


def _check_gpus(options: ClusterOptions, gpus: list[Gpu]) -> None:
    if not gpus:
        hidden = " CUDA_VISIBLE_DEVICES hides all of them." if "CUDA_VISIBLE_DEVICES" in os.environ else ""
        raise UsageError(f"--device cuda: there is no NVIDIA GPU here.{hidden} Use --device cpu, or omit --device.")
    if options.devices == "exclusive" and options.num_engines is not None and options.num_engines > len(gpus):
        count = f"{len(gpus)} GPU{'s' if len(gpus) > 1 else ''}"
        raise UsageError(
            f"--engines {options.num_engines}: {options.num_engines} engines were asked for, one per GPU, and there "
            f"{'are' if len(gpus) > 1 else 'is'} {count}. Use --engines {len(gpus)}, --devices shared to try the cell with "
            "several engines on one GPU, or --device cpu to compute on CPU cores."
        )
    if not torch_has_cuda():
        raise UsageError("--device cuda: the installed PyTorch is built without CUDA. Install a CUDA build, or use --device cpu.")


@functools.cache
def cpu_name() -> str:
    """Return the processor's name."""
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match[1].strip() if match else platform.processor() or platform.machine() or "CPU"

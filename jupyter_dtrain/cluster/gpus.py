"""The GPUs of this machine, found without importing torch."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..system.resources import memory


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU that this process may use.

    Attributes
    ----------
    index : str
        As ``CUDA_VISIBLE_DEVICES`` names it.
    name : str
        The hardware's name.
    memory : int
        Its bytes; 0 if unknown.
    """

    index: str
    name: str
    memory: int = 0


def visible_gpus() -> list[Gpu]:
    """Return the GPUs that ``CUDA_VISIBLE_DEVICES`` allows, or all if it is not set."""
    nvml = _nvml()
    if nvml is None:
        return []
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        found = [
            Gpu(index=_text(nvml.nvmlDeviceGetUUID(handle)), name=_text(nvml.nvmlDeviceGetName(handle)), memory=_memory_of(nvml, handle))
            for handle in handles
        ]
    except nvml.NVMLError:
        return []
    finally:
        nvml.nvmlShutdown()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found if chosen is None else _chosen(chosen, found)


def _memory_of(nvml: Any, handle: Any) -> int:
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except (AttributeError, nvml.NVMLError):  # NVML reports none if host and GPU share memory
        return 0


def bytes_for_each(num_engines: int, *, device: str) -> int:
    """Return the bytes available to each of `num_engines` engines: of a GPU, or its part of the memory; 0 if unknown."""
    gpus = visible_gpus() if device == "cuda" else []
    if not gpus:
        return memory().total // num_engines
    return min(gpu.memory for gpu in gpus) // -(-num_engines // len(gpus))


def _chosen(variable: str, found: list[Gpu]) -> list[Gpu]:
    """Return the GPUs that CUDA sees under ``CUDA_VISIBLE_DEVICES=variable``: entries up to the first invalid one."""
    gpus = []
    for entry in (part.strip() for part in variable.split(",")):
        if entry.isdigit() and int(entry) < len(found):
            # Keep the number, as CUDA's order of devices may differ from NVML's.
            gpus.append(replace(found[int(entry)], index=entry))
        elif entry.startswith("MIG-"):
            gpus.append(Gpu(index=entry, name="NVIDIA MIG device"))
        elif entry.startswith("GPU-") and (matches := [gpu for gpu in found if gpu.index.startswith(entry)]):
            gpus.append(replace(matches[0], index=entry))
        else:
            break
    return gpus


def _nvml() -> Any:
    """Return the initialized NVML module, ``None`` if there is no driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


@functools.cache
def torch_has_cuda() -> bool:
    """Return whether the installed PyTorch is a CUDA build, from its version file, as the import takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    try:
        text = Path(spec.origin).with_name("version.py").read_text()
    except OSError:
        return False
    return re.search(r"^cuda\b[^=]*=\s*['\"]", text, re.MULTILINE) is not None

"""Estimate the time of a step under a strategy from its computation, its communication and the speeds of this machine.

The estimate is for comparing plans with each other. Speeds are those of a matrix product, of memory and of small operations. They are
measured for some hundredths of a second on the engines' device, in the process that runs the step on fakes. Convolutions and LSTMs are
much slower on a CPU and are timed instead (:mod:`.work_space`). Caches and other processes change the time of all plans alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..strategies import Divided, StrategyInfo
from .exchange import Exchange
from .live_bytes import StepMemory
from .step_work import AtomCall

TRIES = 3
PER_MEETING = 1.5e-4
"""Seconds for engines of one host to meet, read and continue."""
PER_UNIT = 3e-4
"""Seconds of Python for fetching a unit's parameters for its call and again for its backward pass."""
PER_CALL = 1.5e-3
"""Seconds of Python for a call on another engine and its backward pass."""


@dataclass(frozen=True)
class Speeds:
    """Speeds of one engine's thread or GPU.

    Attributes
    ----------
    flops : float
        FLOPs per second.
    num_bytes : float
        Bytes read or written per second.
    per_operation : float
        Seconds of a small operation.
    exchanged : float, optional
        Bytes read from another engine per second; ``None``: the other engine writes them to memory first.
    """

    flops: float = 3e10
    num_bytes: float = 5e9
    per_operation: float = 1e-5
    exchanged: float | None = None


def measured_speeds(device: str) -> Speeds:
    """Measure the speeds of ``"cpu"`` or ``"cuda"`` in this process, which takes a moment."""
    on_gpu = device == "cuda"
    size, length = (4096, 1 << 26) if on_gpu else (384, 1 << 22)
    left, large, small = torch.ones(size, size, device=device), torch.ones(length, device=device), torch.ones(16, device=device)

    def least(do: Callable[[], object]) -> float:
        return _least(do, torch.cuda.synchronize if on_gpu else lambda: None)

    def small_ones() -> None:
        for _ in range(200):
            small.add(1.0)

    product = least(lambda: left @ left)
    copy = least(lambda: large.mul_(1.0))
    exchanged = None
    if on_gpu:  # engines on one card copy within its memory
        other = torch.ones_like(large, device="cuda:1" if torch.cuda.device_count() > 1 else device)
        exchanged = large.nbytes / least(lambda: large.copy_(other))
    return Speeds(2 * left.numel() * len(left) / product, 2 * large.nbytes / copy, least(small_ones) / 200, exchanged)


def _least(do: Callable[[], object], finish: Callable[[], None]) -> float:
    do()
    finish()
    times = []
    for _ in range(TRIES):
        begun = time.perf_counter()
        do()
        finish()
        times.append(time.perf_counter() - begun)
    return max(min(times), 1e-9)


def seconds(
    step: StepMemory, info: StrategyInfo, exchange: Exchange, speeds: Speeds, *, engines: int, groups: int, samples: float, by_columns: bool
) -> float:
    """Return the seconds of a step; `exchange` is an engine's communication in it, for the other parameters see :func:`.exchanged`."""
    work, parts = step.work, engines // groups
    scale = samples / max(work.samples, 1)
    flops, traffic = work.passes.flops - work.passes.tried_flops, work.passes.traffic - work.passes.tried_traffic
    passing = exchange.num_bytes / (speeds.exchanged or speeds.num_bytes / 2) + exchange.meetings * PER_MEETING
    updating = work.updating / speeds.num_bytes, work.updates * speeds.per_operation

    def computing(part: float) -> float:
        return (
            part * (flops / speeds.flops + traffic / speeds.num_bytes + work.passes.seconds) + work.passes.operations * speeds.per_operation
        )

    if by_columns:
        linear = sum(call.flops for call in work.linears if call.is_divided(engines)) / max(flops, 1)
        divided = sum(layer.parameters for layer in step.layers if layer.is_divided(engines)) / max(step.parameters, 1)
        saved = linear * (1 - 1 / parts) * (flops / speeds.flops + traffic / speeds.num_bytes * _OF_LINEAR)
        rest = 1 - divided * (1 - 1 / engines)
        return computing(scale / groups) - scale / groups * saved + updating[0] * rest + updating[1] + passing
    if Divided.PARAMETERS in info.divides and info.by_blocks and work.hands_on:
        calls = len([call for call in work.atoms if call.group >= 0])
        bubble = 1 + (parts - 1) * _largest_stage(step, work.atoms, parts)
        return computing(scale / engines) * bubble + updating[0] / engines + updating[1] / parts + passing + calls * PER_CALL
    found = computing(scale / engines) + passing
    if Divided.PARAMETERS in info.divides:
        return found + updating[0] / engines + updating[1] + work.units * PER_UNIT
    share = engines if Divided.OPTIMIZER_STATE in info.divides else 1
    return found + updating[0] / share + updating[1] / share


_OF_LINEAR = 0.5
"""Share of the bytes read and written that is of linear layers if they do all FLOPs."""


def _largest_stage(step: StepMemory, atoms: tuple[AtomCall, ...], stages: int) -> float:
    """Return the largest share of the FLOPs that a stage computes."""
    stage_of, loads = step.stages(stages), [0] * stages
    for call in atoms:
        if call.group >= 0:
            loads[stage_of[call.group]] += call.flops
    return max(loads) / sum(loads) if sum(loads) else 1 / stages

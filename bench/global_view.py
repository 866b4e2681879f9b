"""What the global view costs: per operation against DTensor, and per step of a small convolutional network.

Two ranks on this machine, as the engines of a cluster meet. DistributedDataParallel by hand exchanges over gloo, and once over shared
memory as ours do, which leaves what the view itself costs. Every figure is a median over rounds in which the variants take turns, so that
they share the machine's moods; ratios are medians of the rounds' ratios with their quartiles. Run with ``python -m bench.global_view``.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing import spawn  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from jupyter_dtrain.cluster.endpoint import FileEndpoint
from jupyter_dtrain.engine.comm.collectives import reducer_group
from jupyter_dtrain.engine.comm.process_group import ProcessGroup, Rendezvous
from jupyter_dtrain.engine.comm.rank_store import StoreChannel
from jupyter_dtrain.engine.control import Control
from jupyter_dtrain.engine.strategies.data_parallel.training import DataParallelTraining
from jupyter_dtrain.engine.task import Semantics
from jupyter_dtrain.engine.telemetry.notices import Notices
from jupyter_dtrain.engine.telemetry.observer import Observer
from jupyter_dtrain.engine.tensor.batch_shard import share_of
from jupyter_dtrain.engine.tensor.placement_types import Shard, from_local
from jupyter_dtrain.engine.timing import Timing

ROUNDS = 15
STEPS = 20
BATCH = 64
TIMEOUT = timedelta(seconds=60)


def main() -> None:
    """Print both tables."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, args=(2, Rendezvous(FileEndpoint(Path(folder) / "bench"), key=b"")), nprocs=2)


def _rank(rank: int, world_size: int, meeting: Rendezvous) -> None:
    torch.set_num_threads(1)
    group = ProcessGroup()
    group.join(meeting, rank=rank, world_size=world_size, device=torch.device("cpu"), timeout=TIMEOUT)
    operations(rank, world_size)
    steps(rank, world_size)
    dist.barrier()
    group.leave()


def operations(rank: int, world_size: int) -> None:
    """Time single operations: plain, ours, DTensor."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard as DShard
    from torch.distributed.tensor import distribute_tensor

    training = _training(rank, world_size, None)
    share = share_of(2 * BATCH, rank, [1.0] * world_size)
    x, y = torch.randn(BATCH, 10), torch.randint(0, 10, (BATCH,))
    mesh = init_device_mesh("cpu", (world_size,))
    dx, dy = (
        distribute_tensor(torch.randn(2 * BATCH, 10), mesh, [DShard(0)]),
        distribute_tensor(torch.randint(0, 10, (2 * BATCH,)), mesh, [DShard(0)]),
    )
    with training.installed():
        gx, gy = from_local(x, Shard(0, share)), from_local(y, Shard(0, share))
        cases: dict[str, dict[str, Callable[[], Any]]] = {
            "x + x": {"plain": lambda: x + x, "ours": lambda: gx + gx, "DTensor": lambda: dx + dx},
            "x.argmax(1) == y": {
                "plain": lambda: x.argmax(1) == y,
                "ours": lambda: gx.argmax(1) == gy,
                "DTensor": lambda: dx.argmax(1) == dy,
            },
            "cross_entropy(x, y)": {
                "plain": lambda: F.cross_entropy(x, y),
                "ours": lambda: F.cross_entropy(gx, gy),
                "DTensor": lambda: F.cross_entropy(dx, dy),
            },
        }
        if rank == 0:
            print(f"{'operation':<24}{'plain':>10}{'ours':>10}{'DTensor':>10}   µs, medians of {ROUNDS} rounds")
        for name, variants in cases.items():
            times: dict[str, list[float]] = {variant: [] for variant in variants}
            for _ in range(ROUNDS):
                for variant, action in variants.items():
                    dist.barrier()
                    start = time.perf_counter()
                    for _ in range(100):
                        action()
                    times[variant].append((time.perf_counter() - start) / 100 * 1e6)
            if rank == 0:
                medians = "".join(f"{statistics.median(values):>10.1f}" for values in times.values())
                print(f"{name:<24}{medians}", flush=True)


def steps(rank: int, world_size: int) -> None:
    """Time training steps: DistributedDataParallel by hand, ours without a read, ours with ``loss.item()`` each step."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(STEPS * BATCH, 1, 8, 8), torch.randint(0, 10, (STEPS * BATCH,)))

    def network() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(1024, 10),
        )

    def epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[Any], *, read: bool) -> float:
        total = 0.0
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if read:
                total += loss.item()
        return total

    over_gloo = DistributedDataParallel(network(), gradient_as_bucket_view=True)
    over_memory = DistributedDataParallel(network(), process_group=reducer_group(), gradient_as_bucket_view=True)
    half = torch.utils.data.Subset(data, range(rank * len(data) // world_size, (rank + 1) * len(data) // world_size))
    hand_loader: DataLoader[Any] = DataLoader(half, batch_size=BATCH // world_size)
    loader: DataLoader[Any] = DataLoader(data, batch_size=BATCH)
    ours = network()
    variants: dict[str, tuple[Any, bool, bool]] = {
        "DDP by hand": (over_gloo, False, False),
        "DDP over shared memory": (over_memory, False, False),
        "the same, local item()": (over_memory, True, False),
        "ours, nothing read": (ours, False, True),
        "ours, loss.item() each step": (ours, True, True),
    }
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.01) for name, (model, _, _) in variants.items()}
    trainings = {name: _training(rank, world_size, ours) for name, (_, _, watched) in variants.items() if watched}
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(ROUNDS + 1):
        for name, (model, read, watched) in variants.items():
            with ExitStack() as stack:
                if watched:
                    # One run per round would make its reducer anew: keep it, as one run does over its epochs.
                    stack.enter_context(_kept(trainings[name]))
                dist.barrier()
                start = time.perf_counter()
                epoch(model, optimizers[name], loader if watched else hand_loader, read=read)
                times[name].append((time.perf_counter() - start) / STEPS * 1e3)
    if rank == 0:
        bases = ["DDP by hand", "DDP over shared memory"]
        print(f"\n{'step of a small CNN':<30}{'ms':>8}   ratios to {' and to '.join(bases)}, medians (quartiles)")
        for name, values in times.items():
            found = [_ratio(values[1:], times[base][1:]) for base in bases]
            print(f"{name:<30}{statistics.median(values[1:]):>8.2f}   {'   '.join(found)}", flush=True)


def _ratio(values: list[float], base: list[float]) -> str:
    low, middle, high = statistics.quantiles([value / other for value, other in zip(values, base, strict=True)], n=4)
    return f"{middle:.3f} ({low:.3f}–{high:.3f})"


class _kept:  # noqa: N801
    """Installs a training without closing its reducers at the end."""

    def __init__(self, training: DataParallelTraining) -> None:
        self._training = training

    def __enter__(self) -> None:
        gradients = self._training._gradients
        assert gradients is not None
        self._close, gradients.close = gradients.close, lambda: None  # type: ignore[method-assign]
        self._installed = self._training.installed()
        self._installed.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._installed.__exit__(*error)


def _training(rank: int, world_size: int, model: nn.Module | None) -> DataParallelTraining:
    return DataParallelTraining(
        rank=rank,
        world_size=world_size,
        objects=[] if model is None else [model],
        semantics=Semantics(),
        control=Control(StoreChannel(dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=5))),  # type: ignore[attr-defined]
        observer=Observer(rank),
        timing=Timing(rank, torch.device("cpu")),
        notes=Notices(lambda _: None, rank=rank),
    )


if __name__ == "__main__":
    main()

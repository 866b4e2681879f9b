"""What the global view costs: per operation against DTensor, and per step of a small convolutional network.

Two gloo ranks on this machine. Every figure is a median over rounds in which the variants take turns, so that they share the
machine's moods; ratios are medians of the rounds' ratios with their quartiles. Run with ``python bench/global_view.py``.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing import spawn  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from jupyter_dtrain.engine.control import Control
from jupyter_dtrain.engine.notes import Notes
from jupyter_dtrain.engine.observe import Observer
from jupyter_dtrain.engine.placements import Shard, place
from jupyter_dtrain.engine.shares import share_of
from jupyter_dtrain.engine.timing import Timing
from jupyter_dtrain.engine.training import Training

ROUNDS = 15
STEPS = 20
BATCH = 64


def main() -> None:
    """Print both tables."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    spawn(_rank, args=(2, _free_port()), nprocs=2)


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _rank(rank: int, world_size: int, port: int) -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, world_size, rank == 0, timedelta(seconds=60))  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    operations(rank, world_size)
    steps(rank, world_size)
    dist.barrier()
    dist.destroy_process_group()


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
        gx, gy = place(x, Shard(0, share)), place(y, Shard(0, share))
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

    by_hand = DistributedDataParallel(network(), gradient_as_bucket_view=True)
    half = torch.utils.data.Subset(data, range(rank * len(data) // world_size, (rank + 1) * len(data) // world_size))
    hand_loader: DataLoader[Any] = DataLoader(half, batch_size=BATCH // world_size)
    loader: DataLoader[Any] = DataLoader(data, batch_size=BATCH)
    ours = network()
    variants: dict[str, tuple[Any, bool, bool]] = {
        "DDP by hand": (by_hand, False, False),
        "DDP by hand, local item()": (by_hand, True, False),
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
        base = times["DDP by hand"][1:]
        print(f"\n{'step of a small CNN':<30}{'ms':>8}   ratio to DDP by hand, median (quartiles)")
        for name, values in times.items():
            ratios = [value / other for value, other in zip(values[1:], base, strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            print(f"{name:<30}{statistics.median(values[1:]):>8.2f}   {middle:.3f} ({low:.3f}–{high:.3f})", flush=True)


class _kept:  # noqa: N801
    """Installs a training without closing its reducers at the end."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def __enter__(self) -> None:
        gradients = self._training._gradients
        assert gradients is not None
        self._close, gradients.close = gradients.close, lambda: None  # type: ignore[method-assign]
        self._installed = self._training.installed()
        self._installed.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._installed.__exit__(*error)


def _training(rank: int, world_size: int, model: nn.Module | None) -> Training:
    return Training(
        rank=rank,
        world_size=world_size,
        objects=[] if model is None else [model],
        global_numbers=True,
        control=Control(dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=5)),  # type: ignore[attr-defined]
        observer=Observer(rank),
        timing=Timing(rank, torch.device("cpu")),
        notes=Notes(lambda _: None, rank=rank),
    )


if __name__ == "__main__":
    main()

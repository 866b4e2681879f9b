"""Observes loss, steps, learning rate and samples of a run, without a logging call in the cell.

A new step begins when an optimizer steps for the second time in the present one. So the two optimizers of a GAN make one step together, and
optimizers that are used one after the other keep counting. In a cell that updates its weights by hand, backward passes are counted.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from ...protocol import Message, Progress, Scalars, Steps
from ...system.patches import patched
from ..tensor.batch_shard import BatchShard
from ..tensor.placement_types import GlobalTensor, Partial, detached
from .best_metric import Best
from .hyperparameters import HyperparameterLog

_now = time.time  # the clock of this rank: in a cell, `time.time` asks rank 0


@dataclass
class _Step:
    step: int
    time: float
    loss: torch.Tensor | None
    weight: float
    learning_rate: float | None
    samples: int
    computed: torch.cuda.Event | None = None

    def read_loss(self) -> float | None:
        """Return the rank's part of the loss, ``None`` where there is none, or where its GPU has failed. Waits for it."""
        try:
            if self.computed is not None:
                self.computed.synchronize()
            return None if self.loss is None else float(self.loss)
        except RuntimeError:  # the cell's own operation tells of the failure
            return None


class Observer:
    """Counts the steps of one rank, and keeps the values of each until they are sent; `best` gets what is logged.

    Attributes
    ----------
    hyperparameters : HyperparameterLog
        The hyperparameters of the steps.
    """

    def __init__(self, rank: int, best: Best | None = None) -> None:
        self._rank = rank
        self.best = best
        self.hyperparameters = HyperparameterLog(rank)
        self._lock = threading.Lock()
        self._done: list[_Step] = []
        self._logged: list[tuple[str, int, float, float]] = []
        self._progress: Progress | None = None
        self._stepped: list[torch.optim.Optimizer] = []
        self._num_sent: Counter[str] = Counter()  # of logged values, by name
        self._loss: torch.Tensor | None = None
        self._scaled: tuple[weakref.ref[torch.Tensor], torch.Tensor] | None = None  # a loss that was scaled, and as it was before
        self._weight = 1.0
        self._samples = 0  # drawn since the last backward pass
        self._used = 0  # drawn for the backward passes of this step
        self._epoch = 0
        self.step = 0
        self._metric_is_logged = False  # by the cell itself
        self._metric_is_set = False  # the cell's variable
        self._followed: tuple[int, float] | None = None  # the step and the value at which that was logged last
        self.any_optimizer = False  # there is one, so a backward pass makes no step by itself

    @contextmanager
    def installed(self, objects: Iterable[object]) -> Iterator[None]:
        """Follow schedulers, and losses before a ``GradScaler`` scales them, in the ``with`` block."""
        scale = GradScaler.scale

        @wraps(scale)
        def scaler_scale(scaler: GradScaler, outputs: Any) -> Any:
            scaled = scale(scaler, outputs)
            if isinstance(outputs, torch.Tensor) and scaled is not outputs:
                self._scaled = weakref.ref(scaled), outputs.detach()
            return scaled

        with self.hyperparameters.installed(objects), patched(GradScaler, "scale", scaler_scale):
            yield

    def unscaled(self, root: torch.Tensor) -> torch.Tensor:
        """Return the loss of a backward pass as it was before a ``GradScaler`` has scaled it."""
        scaled = self._scaled
        return scaled[1] if scaled is not None and scaled[0]() is root else root

    def on_batch(self, share: BatchShard | None, batch: int, batches: int | None) -> None:
        """Note a batch that the cell draws in training; `share` is the rank's shard, ``None`` if each rank has all of it."""
        self._samples += 0 if share is None else share.num_samples
        self.hyperparameters.on_batch()
        if batch == 1:
            self._epoch += 1
        self._progress = Progress(rank=self._rank, epoch=self._epoch, batch=batch, batches=batches, step=self.step)

    def on_backward(self, root: torch.Tensor, weight: float) -> None:
        """Note a backward pass; the loss is the sum of the ranks' `root` times their `weight`."""
        if not self.any_optimizer and self._loss is not None:
            self._finish(None)  # the pass before was a step made by hand
        self.hyperparameters.on_backward()
        part = detached(root)
        is_whole = not isinstance(root, GlobalTensor) or isinstance(root.placement, Partial)  # a shard of one sample is no number
        self._loss = part if part.numel() == 1 and (is_whole or root.numel() == 1) else None
        self._weight = weight
        self._used, self._samples = self._used + self._samples, 0

    def on_backward_failed(self) -> None:
        """Note that a backward pass has raised an error: it makes no step."""
        self._loss = None

    def on_optimizer(self) -> None:
        """Note an optimizer: from now on its steps are counted, and not backward passes."""
        self.any_optimizer = True

    def on_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Note a step of an optimizer."""
        self.any_optimizer = True
        self.hyperparameters.on_optimizer_step(optimizer)
        self._used, self._samples = self._used + self._samples, 0
        if any(optimizer is other for other in self._stepped):
            self._stepped.clear()
        first = not self._stepped
        self._stepped.append(optimizer)
        if first:
            rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
            self._finish(float(rate) if rate is not None else None)

    def _finish(self, learning_rate: float | None) -> None:
        self.step += 1
        done = _Step(self.step, _now(), self._loss, self._weight, learning_rate, self._used)
        if self._loss is not None and self._loss.is_cuda:
            done.computed = _end_of_side_stream()
        self._loss, self._used = None, 0
        with self._lock:
            self._done.append(done)

    def log(self, values: Mapping[str, float]) -> None:
        """Note values that the cell logs in the present step."""
        self._note(values)
        if self.best is not None and self.best.name in values:
            self._metric_is_logged = True
            self.best.note(values[self.best.name])

    def _note(self, values: Mapping[str, float]) -> None:
        with self._lock:
            self._logged += [(name, self.step, _now(), value) for name, value in values.items()]

    def state_dict(self) -> dict[str, Any]:
        """Return the counts from which another process resumes. Call :meth:`drain` before."""
        return {
            "step": self.step,
            "epoch": self._epoch,
            "any_optimizer": self.any_optimizer,
            "stepped": list(self._stepped),
            "num_sent": dict(self._num_sent),
            "best": None if self.best is None else self.best.state_dict(),
            "hyperparameters": self.hyperparameters.state_dict(),
            "metric": (self._metric_is_logged, self._metric_is_set, self._followed),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a :meth:`state_dict`."""
        self.step, self._epoch, self.any_optimizer = state["step"], state["epoch"], state["any_optimizer"]
        self._stepped = list(state["stepped"])
        self._num_sent = Counter(state["num_sent"])
        if "hyperparameters" in state:
            self.hyperparameters.load_state_dict(state["hyperparameters"])
        if self.best is not None:
            self.best.load_state_dict(state["best"])
            found = state.get("metric", (bool(self._num_sent[self.best.name]), False, None))
            self._metric_is_logged, self._metric_is_set, self._followed = found

    def finish(self) -> None:
        """Count the last step of a cell that updates its weights by hand."""
        if not self.any_optimizer and self._loss is not None:
            self._finish(None)

    def follow_metric(self, namespace: Mapping[str, Any]) -> None:
        """Log the cell's variable with the metric's name once per step, if the cell does not log the metric itself."""
        best = self.best
        if best is None or self._metric_is_logged or (self._followed is not None and self._followed[0] == self.step):
            return
        value = best.number_in(namespace) if self._metric_is_set else best.found_in(namespace)
        if value is not None:
            self._metric_is_set, self._followed = True, (self.step, value)
            self._note({best.name: value})

    def log_metric(self, namespace: Mapping[str, Any]) -> None:
        """Log the variable at the end of the cell, where it may have been set after the last step."""
        before = self._followed
        if before is not None and self.best is not None and self.best.number_in(namespace) != before[1]:
            self._followed = None
        self.follow_metric(namespace)

    def drain(self) -> list[Message]:
        """Return messages about what is new. It reads losses from the device, so do not call it on the training thread."""
        with self._lock:
            done, self._done = self._done, []
            logged, self._logged = self._logged, []
        progress, self._progress = self._progress, None
        messages = self.hyperparameters.drain()
        if done:
            messages.append(
                Steps(
                    rank=self._rank,
                    step=[s.step for s in done],
                    time=[s.time for s in done],
                    loss=[s.read_loss() for s in done],
                    weight=[s.weight for s in done],
                    learning_rate=[s.learning_rate for s in done],
                    samples=[s.samples for s in done],
                )
            )
        for name in dict.fromkeys(entry[0] for entry in logged):
            steps, times, values = zip(*(entry[1:] for entry in logged if entry[0] == name), strict=True)
            first = self._num_sent[name]
            self._num_sent[name] += len(steps)
            messages.append(Scalars(rank=self._rank, name=name, first=first, step=list(steps), time=list(times), value=list(values)))
        if progress is not None and self._rank == 0:
            messages.append(progress)
        return messages


def _end_of_side_stream() -> torch.cuda.Event | None:
    """Return what waits for the stream that the cell uses, ``None`` for a GPU's default one: another thread's copies come behind that."""
    stream = torch.cuda.current_stream()
    return None if stream == torch.cuda.default_stream() else stream.record_event()

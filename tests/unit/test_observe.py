"""What counts as a step, and what is reported of each."""

from __future__ import annotations

import threading
import weakref

import torch

from jupyter_dtrain.engine.telemetry.observer import Observer
from jupyter_dtrain.engine.tensor.batch_shard import BatchShard
from jupyter_dtrain.protocol import Progress, Steps


def optimizer(lr: float = 0.5) -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)


def loss(value: float) -> torch.Tensor:
    return torch.tensor(value, requires_grad=True)


def steps_of(observer: Observer) -> list[tuple[int, float | None, float, float | None, int]]:
    """Return (step, loss, weight, learning rate, samples) of every step since the last call."""
    found = []
    for message in observer.drain():
        if isinstance(message, Steps):
            assert len({len(column) for column in (message.step, message.time, message.loss, message.samples)}) == 1
            found += list(zip(message.step, message.loss, message.weight, message.learning_rate, message.samples, strict=True))
    return found


def test_a_step_is_an_optimizers():
    observer, sgd = Observer(rank=1), optimizer()
    for batch, value in enumerate([3.0, 2.0], start=1):
        observer.on_batch(BatchShard(0, 4, 10), batch, 2)
        observer.on_backward(loss(value), 0.4)
        observer.on_optimizer_step(sgd)
    assert steps_of(observer) == [(1, 3.0, 0.4, 0.5, 4), (2, 2.0, 0.4, 0.5, 4)]
    assert steps_of(observer) == [], "each is reported once"
    observer.finish()
    assert (observer.step, steps_of(observer)) == (2, [])


def test_gradients_accumulated_over_batches_are_one_step():
    observer, sgd = Observer(rank=0), optimizer()
    observer.on_optimizer()  # it came with the cell
    for _ in range(2):
        for batch in range(1, 4):
            observer.on_batch(BatchShard(0, 2, 4), batch, None)
            observer.on_backward(loss(float(batch)), 0.5)
        observer.on_optimizer_step(sgd)
    assert steps_of(observer) == [(1, 3.0, 0.5, 0.5, 6), (2, 3.0, 0.5, 0.5, 6)]


def test_two_optimizers_in_turn_make_one_step():
    observer, first, second = Observer(rank=0), optimizer(0.1), optimizer(0.2)
    for _ in range(3):
        observer.on_batch(BatchShard(0, 1, 2), 1, None)
        observer.on_backward(loss(1.0), 0.5)
        observer.on_optimizer_step(first)
        observer.on_backward(loss(2.0), 0.5)
        observer.on_optimizer_step(second)
    assert observer.step == 3
    assert [(step, rate, samples) for step, _, _, rate, samples in steps_of(observer)] == [(1, 0.1, 1), (2, 0.1, 1), (3, 0.1, 1)]


def test_an_optimizer_that_follows_another_counts_on():
    observer, first, second = Observer(rank=0), optimizer(0.1), optimizer(0.2)
    for sgd in (first, first, second, second, second):
        observer.on_backward(loss(1.0), 1.0)
        observer.on_optimizer_step(sgd)
    assert observer.step >= 4
    assert steps_of(observer)[-1][3] == 0.2


def test_steps_by_hand_are_backward_passes():
    observer = Observer(rank=0)
    for value in (3.0, 2.0, 1.0):
        observer.on_batch(BatchShard(0, 2, 2), 1, None)
        observer.on_backward(loss(value), 1.0)
    assert [(step, samples) for step, _, _, _, samples in steps_of(observer)] == [(1, 2), (2, 2)], "the last may have more to come"
    observer.finish()
    assert observer.step == 3
    assert [(step, found, samples) for step, found, _, _, samples in steps_of(observer)] == [(3, 1.0, 2)]


def test_a_pass_that_has_failed_is_no_step_by_hand():
    observer = Observer(rank=0)
    observer.on_backward(loss(3.0), 1.0)
    observer.on_backward(loss(2.0), 1.0)  # which counts the first
    observer.on_backward_failed()
    observer.finish()
    assert [(step, found) for step, found, *_ in steps_of(observer)] == [(1, 3.0)]


def test_what_is_no_single_number_is_no_loss():
    observer, sgd = Observer(rank=0), optimizer()
    observer.on_backward(torch.ones(3, requires_grad=True), 1.0)
    observer.on_optimizer_step(sgd)
    observer.on_backward(torch.ones(1, 1, requires_grad=True), 1.0)
    observer.on_optimizer_step(sgd)
    observer.on_optimizer_step(sgd)
    assert [found for _, found, *_ in steps_of(observer)] == [None, 1.0, None]


def test_a_loss_keeps_no_graph():
    observer, sgd = Observer(rank=0), optimizer()
    weight = torch.ones(1, requires_grad=True)
    squared = weight.square()
    graph = weakref.ref(squared)
    observer.on_backward(squared.sum(), 1.0)
    observer.on_optimizer_step(sgd)
    del squared
    assert graph() is None
    assert [found for _, found, *_ in steps_of(observer)] == [1.0]


def test_an_optimizer_without_a_rate():
    observer, sgd = Observer(rank=0), optimizer()
    del sgd.param_groups[0]["lr"]
    observer.on_optimizer_step(sgd)
    assert [rate for *_, rate, _ in steps_of(observer)] == [None]
    sgd.param_groups[0]["lr"] = torch.tensor(0.25)
    observer.on_optimizer_step(sgd)
    assert [rate for *_, rate, _ in steps_of(observer)] == [0.25]


def test_progress_is_that_of_rank_0():
    for rank, expected in ((0, [Progress(rank=0, epoch=2, batch=2, batches=5)]), (1, [])):
        observer = Observer(rank=rank)
        for batch in (1, 2, 3, 1, 2):
            observer.on_batch(BatchShard(0, 1, 1), batch, 5)
        assert [message for message in observer.drain() if isinstance(message, Progress)] == expected
        assert observer.drain() == []


def test_a_batch_that_is_not_shared_out_counts_no_samples():
    observer, sgd = Observer(rank=0), optimizer()
    observer.on_batch(None, 1, None)
    observer.on_optimizer_step(sgd)
    assert [samples for *_, samples in steps_of(observer)] == [0]


def test_no_step_is_lost_between_two_threads():
    observer, sgd = Observer(rank=0), optimizer()
    done = threading.Event()
    seen: list[int] = []

    def send() -> None:
        while not done.is_set():
            seen.extend(step for step, *_ in steps_of(observer))

    sender = threading.Thread(target=send)
    sender.start()
    for number in range(2000):
        observer.on_backward(loss(float(number)), 1.0)
        observer.on_optimizer_step(sgd)
    done.set()
    sender.join(10)
    seen.extend(step for step, *_ in steps_of(observer))
    assert seen == list(range(1, 2001))


def test_a_loss_that_is_scaled_for_its_gradients_is_shown_as_it_is():
    observer, sgd = Observer(rank=0), optimizer()
    scaler, off = (torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=enabled) for enabled in (True, False))
    with observer.installed([]):
        for one in (scaler, off):
            computed = loss(3.0) * 1
            scaled = one.scale(computed)
            observer.on_backward(observer.unscaled(scaled), 0.5)
            observer.on_optimizer_step(sgd)
            other = loss(2.0)
            assert observer.unscaled(other) is other
    assert [step[1] for step in steps_of(observer)] == [3.0, 3.0]

"""Keyboard interrupts on an engine break off the cell, between two steps and not in the middle of one."""

from __future__ import annotations

import signal
import time

import pytest
import torch

from jupyter_dtrain.engine.arrival.objects import is_stepping
from jupyter_dtrain.engine.telemetry.kernel_link import Interrupts

LIMIT = 20.0


@pytest.fixture
def interrupts():
    before = signal.getsignal(signal.SIGINT)
    yield Interrupts(not_here=is_stepping)
    signal.signal(signal.SIGINT, before)


class Interrupted(torch.optim.SGD):
    """Adds one to each parameter; an interrupt comes after the first of them."""

    def step(self, closure=None):
        for index, parameter in enumerate(self.param_groups[0]["params"]):
            with torch.no_grad():
                parameter += 1
            if index == 0:
                signal.raise_signal(signal.SIGINT)
            if closure is not None:
                closure()


def test_an_interrupt_is_one_in_the_cell_only(interrupts):
    signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupts.allowed():
        signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)


def test_an_optimizers_step_that_has_begun_is_finished_first(interrupts):
    parameters = [torch.zeros(1, requires_grad=True) for _ in range(3)]
    optimizer = Interrupted(parameters, lr=0.1)

    def cell() -> None:
        optimizer.step()
        time.sleep(LIMIT)

    with pytest.raises(KeyboardInterrupt), interrupts.allowed():
        cell()
    assert [parameter.item() for parameter in parameters] == [1, 1, 1]


def test_an_optimizers_step_that_does_not_end_is_broken_off(interrupts):
    optimizer = Interrupted([torch.zeros(1, requires_grad=True) for _ in range(3)], lr=0.1)
    with pytest.raises(KeyboardInterrupt), interrupts.allowed():
        optimizer.step(lambda: time.sleep(LIMIT))


def test_what_comes_too_late_breaks_nothing(interrupts):
    optimizer = Interrupted([torch.zeros(1, requires_grad=True)], lr=0.1)
    with interrupts.allowed():
        optimizer.step()
    time.sleep(0.1)  # in which the interrupt would come that was put off

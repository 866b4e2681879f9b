"""A GPU whose context has failed: the error says what to do, nothing is read from there any more, and the engine is replaced."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from jupyter_dtrain.engine.cell_run import CellRun
from jupyter_dtrain.engine.memory import can_be_used, give_back_what_is_scarce
from jupyter_dtrain.engine.task import Outcome
from jupyter_dtrain.system.resources import AFTER_KERNEL, advice_for

ASSERTED = "CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at some other API call"


def fails(*_args):
    raise RuntimeError(ASSERTED)


class Failing(CellRun):
    """A cell's run on a card that fails in it, and whatever is done on the card afterwards fails as well."""

    def __init__(self, *, raises: bool) -> None:
        self._task, self._device, self._raises = SimpleNamespace(rank=0), torch.device("cuda:0"), raises  # type: ignore[assignment]
        self._reports = SimpleNamespace(observer=SimpleNamespace(step=5))  # type: ignore[assignment]
        self._failure, self._value = None, None
        self._results = SimpleNamespace(packed_with=self._pack)  # type: ignore[assignment]
        self.has_packed = False

    def _outcome(self, _interrupts, _rescue):
        self._failure = SimpleNamespace(name="AcceleratorError", message=ASSERTED)  # type: ignore[assignment]
        if self._raises:
            fails()
        return Outcome(rank=0, failure=self._failure, stopped=False, steps=5)

    def _pack(self, outcome, _value):
        self.has_packed = True
        return outcome


@pytest.mark.parametrize("raises", [True, False])
def test_the_cells_own_error_is_told_and_nothing_is_packed(monkeypatch, raises):
    monkeypatch.setattr(torch.cuda, "synchronize", fails)
    run = Failing(raises=raises)
    outcome = run.outcome(None, None)  # type: ignore[arg-type]
    assert (outcome.device_failed, outcome.failure, outcome.steps, run.has_packed) == (True, run._failure, 5, False)


def test_another_error_leaves_the_engine_where_it_is(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    run = Failing(raises=False)
    assert not run.outcome(None, None).device_failed  # type: ignore[arg-type]
    assert run.has_packed
    with pytest.raises(RuntimeError, match="device-side"):
        Failing(raises=True).outcome(None, None)  # type: ignore[arg-type]


def test_a_processor_can_always_be_used(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", fails)
    assert can_be_used(torch.device("cpu"))
    assert not can_be_used(torch.device("cuda"))


def test_an_engine_that_waits_to_be_replaced_gives_nothing_back(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", fails)
    give_back_what_is_scarce()


def test_the_error_says_what_to_do():
    assert advice_for("AcceleratorError", ASSERTED) == advice_for("RuntimeError", ASSERTED) == AFTER_KERNEL
    assert "CUDA_LAUNCH_BLOCKING=1" in AFTER_KERNEL

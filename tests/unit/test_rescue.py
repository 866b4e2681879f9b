"""What a cell has made that does not end is taken home by another thread: whole, and as it was between two steps."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from jupyter_dtrain.engine.cell import Failure
from jupyter_dtrain.engine.snapshot.rescue import Rescue, rescue_file
from jupyter_dtrain.engine.task import Outcome
from jupyter_dtrain.engine.telemetry.observer import Observer
from tests.fakes import FakeEmitter

LIMIT = 20.0


class Stuck:
    """A rank whose cell is at `line` of this code and does not leave before :meth:`leave`."""

    def __init__(self, folder: Path, code: str, namespace: dict[str, Any] | None = None) -> None:
        self.file = rescue_file(folder, 0)
        self.emitter, self.observer = FakeEmitter(), Observer(0)
        self.there, self.go_on = threading.Event(), threading.Event()
        self.failures: list[Failure] = []
        names = {"torch": torch, "wait": self._wait, **(namespace or {})}
        self.thread = threading.Thread(target=self._run, args=(compile(code, "cell", "exec"), names), daemon=True)
        self.thread.start()
        assert self.there.wait(LIMIT)

    def _wait(self) -> None:
        self.there.set()
        assert self.go_on.wait(LIMIT)

    def _run(self, code: Any, names: dict[str, Any]) -> None:
        self.rescue = Rescue(self.file, rank=0, filename="cell", observer=self.observer, emitter=self.emitter)  # type: ignore[arg-type]
        exec(code, names)

    def take_home(self) -> None:
        self.rescue.stand_by(self._outcome, num_bytes=lambda: 0)
        self.rescue.start()
        assert self.rescue._thread is not None
        self.rescue._thread.join(LIMIT)

    def _outcome(self, failure: Failure) -> Outcome:
        self.failures.append(failure)
        return Outcome(rank=0, failure=failure, stopped=False, steps=self.observer.step)

    def leave(self) -> None:
        self.go_on.set()
        self.thread.join(LIMIT)


def test_what_there_is_goes_home_with_the_line_that_the_cell_is_at(tmp_path):
    stuck = Stuck(tmp_path, "x = 1\nwait()\n")
    stuck.take_home()
    outcome = pickle.loads(stuck.file.read_bytes())
    stuck.leave()
    assert (outcome.failure.name, outcome.failure.secondary) == ("KeyboardInterrupt", True)
    assert (outcome.failure.frames[0].filename, outcome.failure.frames[0].line) == ("cell", 2)


def test_it_is_told_while_it_goes_on_and_not_after(tmp_path):
    stuck = Stuck(tmp_path, "wait()")
    stuck.take_home()
    assert [message.to_json()["type"] for message in stuck.emitter.told] == ["homeward"]
    stuck.emitter.flush()
    assert stuck.emitter.told == []
    stuck.leave()


def test_a_step_that_is_half_done_does_not_go_home(tmp_path):
    code = """
class Slow(torch.optim.SGD):
    def step(self):
        wait()
Slow([torch.zeros(1)], lr=0.1).step()
"""
    stuck = Stuck(tmp_path, code)
    stuck.take_home()
    stuck.leave()
    assert stuck.failures == []
    assert not stuck.file.exists()


def test_what_changes_while_it_is_packed_is_packed_again(tmp_path):
    stuck = Stuck(tmp_path, "wait()")
    changing = iter([RuntimeError("dictionary changed size during iteration"), "a step", None])
    packed = stuck._outcome

    def outcome(failure: Failure) -> Outcome:
        found = next(changing)
        if isinstance(found, RuntimeError):
            raise found
        result = packed(failure)
        stuck.observer.step += found == "a step"
        return result

    stuck._outcome = outcome  # type: ignore[method-assign]
    stuck.take_home()
    stuck.leave()
    assert pickle.loads(stuck.file.read_bytes()).steps == 1
    assert next(changing, "all of them") == "all of them"


def test_a_cell_that_has_not_begun_has_nothing_to_take_home(tmp_path):
    stuck = Stuck(tmp_path, "wait()")
    stuck.rescue.start()
    assert stuck.rescue._thread is None
    stuck.leave()


@pytest.mark.parametrize("begun", [True, False])
def test_a_cell_that_ends_takes_home_what_it_has_by_itself(tmp_path, begun):
    stuck = Stuck(tmp_path, "wait()")
    if begun:
        stuck.take_home()
    stuck.rescue.stand_down()
    assert len(stuck.emitter.told) == 1
    stuck.leave()

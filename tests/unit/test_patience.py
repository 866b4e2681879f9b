"""Ranks that are to leave are made to by ever stronger means: soon enough for whoever waits at the prompt, and no sooner."""

from __future__ import annotations

import pytest

from jupyter_dtrain.elastic.escalation import ASKED, FAILED, Means, Pace, Patience

PROMPT = 5.0
"""Seconds that may pass between an interrupt and the prompt."""


class Waiting:
    """Somebody who waits for ranks that never leave."""

    def __init__(self) -> None:
        self.now = 100.0
        self.patience = Patience(lambda: self.now)

    def until(self, means: Means, *, presses: tuple[float, ...] = ()) -> float:
        """Return the seconds until `means` is due, pressing ■ at these seconds."""
        begun, left = self.now, list(presses)
        while True:
            pressed = bool(left) and self.now - begun >= left[0]
            if pressed:
                left.pop(0)
            if self.patience.due(pressed=pressed) is means:
                return self.now - begun
            self.now += 0.1
            assert self.now < 1000


def test_nothing_is_due_before_anybody_is_to_leave():
    patience = Patience()
    assert not patience.begun
    assert patience.due(pressed=True) is None


def test_one_interrupt_ends_everything_soon_enough_for_the_prompt():
    waiting = Waiting()
    waiting.patience.start(ASKED)
    assert waiting.until(Means.END) < PROMPT - 0.5  # for what comes after it


@pytest.mark.parametrize("pace", [ASKED, FAILED])
def test_each_means_gets_its_time(pace: Pace):
    waiting = Waiting()
    waiting.patience.start(pace)
    assert waiting.until(Means.INTERRUPT) == pytest.approx(pace.first.total_seconds(), abs=0.11)
    assert waiting.until(Means.RESCUE) == pytest.approx(pace.then.total_seconds(), abs=0.11)
    assert waiting.until(Means.END) == pytest.approx(pace.then.total_seconds(), abs=0.11)
    assert waiting.patience.due() is Means.END  # what is spared now is not spared for ever


def test_an_interrupt_shortens_the_wait_for_ranks_behind_one_that_failed():
    waiting = Waiting()
    waiting.patience.start(FAILED)
    waiting.until(Means.INTERRUPT)
    waiting.patience.start(ASKED)
    assert waiting.until(Means.END) < PROMPT - 0.5


def test_pressing_again_is_quicker_and_spares_nobody():
    waiting = Waiting()
    waiting.patience.start(ASKED)
    assert waiting.until(Means.END_ALL, presses=(0.2, 1.3, 2.4)) == pytest.approx(2.4, abs=0.11)


def test_presses_of_an_impatient_moment_are_one():
    waiting = Waiting()
    waiting.patience.start(ASKED)
    assert waiting.until(Means.RESCUE, presses=(0.2, 0.3, 0.4, 0.5)) == pytest.approx(1.2, abs=0.25)

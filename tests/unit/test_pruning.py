"""Which trials of a search are stopped early, and that it does not depend on when they get where."""

from __future__ import annotations

import math
import random
import threading

import pytest

from jupyter_dtrain.options import Metric
from jupyter_dtrain.search import Search
from jupyter_dtrain.trials.pruning import Pruned, Pruning
from jupyter_dtrain.trials.study import Study

EPOCHS = 27


class Sweep:
    """Trials whose metric after each epoch of ten steps is known."""

    def __init__(self, search, curves, mode="min"):
        self.curves = curves
        study = Study(Search.parse(search), [("x", f"range({len(curves)})")], {}, Metric("loss", mode))
        self.trials = study.trials
        self.pruning = Pruning(Search.parse(search), study.is_poor)
        self.told = {}

    def curve(self, trial):
        return self.curves[trial.values["x"]]

    def start(self, trial):
        self.told[trial.number] = 0
        self.pruning.start(trial)

    def train(self, trial):
        """Let a trial train an epoch; return whether it goes on."""
        epoch = self.told[trial.number] = self.told[trial.number] + 1
        self.pruning.report(trial, epoch, [(10 * epoch, 0.0, self.curve(trial)[epoch - 1])])
        return epoch < len(self.curve(trial))

    def result(self):
        return {trial.values["x"]: self.pruning.finish(trial, unless=lambda: True) for trial in self.trials}

    def run(self, lanes, rng):
        """Run all trials on so many lanes, a random one of which is faster at a time; return what became of each."""
        waiting, going, held = [*self.trials], self.trials[:0], self.trials[:0]
        while waiting or going or held:
            while waiting and len(going) + len(held) < lanes:
                going.append(waiting.pop(0))
                self.start(going[-1])
            if going:
                trial = rng.choice(going)
                goes_on = self.train(trial)
                if not goes_on or (self.pruning.pruned(trial) is not None and rng.random() < 0.5):  # it takes a while to stop
                    going.remove(trial)
                    held.append(trial)
                    self.pruning.finish(trial, unless=lambda: True)
            held = [trial for trial in held if not self.pruning._trials[trial.number].settled]
        return self.result()


def curves(num_trials, seed=0):
    rng = random.Random(seed)
    limits = [rng.uniform(0, 1) for _ in range(num_trials)]
    return [[limit + 2 / (epoch + 1) + rng.uniform(0, 0.01) for epoch in range(EPOCHS)] for limit in limits]


def test_what_is_decided_does_not_depend_on_lanes_or_speed():
    expected = Sweep("asha:30", curves(30)).run(1, random.Random(0))
    pruned = {x: where for x, where in expected.items() if where is not None}
    assert 18 < len(pruned) < 30
    assert {where.step for where in pruned.values()} <= {10, 30, 90, 270}
    assert all(where.value == curves(30)[x][where.step // 10 - 1] for x, where in pruned.items())
    for lanes in (2, 3, 8, 30):
        for seed in range(4):
            assert Sweep("asha:30", curves(30)).run(lanes, random.Random(seed)) == expected


def test_the_best_stays_and_others_cost_little():
    best = min(range(27), key=lambda x: curves(27)[x][-1])
    result = Sweep("asha:27", curves(27)).run(1, random.Random(0))
    assert result[best] is None
    trained = sum(EPOCHS if where is None else where.step // 10 for where in result.values())
    assert trained < 0.3 * 27 * EPOCHS


def test_the_other_end_of_a_metric():
    upside_down = [[-value for value in curve] for curve in curves(27)]
    assert {
        x: None if where is None else Pruned(where.step, -where.value)
        for x, where in Sweep("asha:27", upside_down, "max").run(1, random.Random(0)).items()
    } == Sweep("asha:27", curves(27)).run(1, random.Random(0))


def test_rungs_are_where_the_search_says():
    result = Sweep("asha:20,min_resource=2,reduction_factor=2", curves(20)).run(1, random.Random(0))
    assert {where.step for where in result.values() if where is not None} <= {20, 40, 80, 160}
    assert any(where is not None and where.step == 20 for where in result.values())


def test_a_trial_waits_for_the_word_of_those_before_it():
    sweep = Sweep("asha:2", [[1.0] * 9, [2.0] * 9])
    first, second = sorted(sweep.trials, key=lambda trial: sweep.curve(trial)[0])
    if first.number > second.number:
        sweep.curves.reverse()
        first, second = second, first
    sweep.start(first)
    sweep.start(second)
    while sweep.train(second):
        assert sweep.pruning.pruned(second) is None, "the first may still do worse"
    found = []
    waiting = threading.Thread(target=lambda: found.append(sweep.pruning.finish(second, unless=lambda: False)))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    sweep.train(first)
    waiting.join(10)
    assert found == [Pruned(10, 2.0)]
    assert sweep.pruning.take() == [second.number]
    assert sweep.pruning.take() == []


def test_one_that_ends_before_it_gets_there_holds_up_nobody():
    sweep = Sweep("asha:3", [[1.0] * 9, [1.0] * 9, [3.0] * 9])
    one, two, three = sweep.trials
    for trial in sweep.trials:
        sweep.start(trial)
    sweep.train(three)
    sweep.train(two)
    assert sweep.pruning.pruned(three) is None
    assert sweep.pruning.finish(one, unless=lambda: False) is None, "it has failed, or was stopped"
    decided = [trial for trial in (two, three) if sweep.pruning.pruned(trial) is not None]
    assert decided == [trial for trial in (three,) if sweep.curve(three)[0] > sweep.curve(two)[0]]


def test_one_whose_engines_did_not_come_up_begins_again_later():
    sweep = Sweep("asha:2", [[1.0] * 9, [2.0] * 9])
    one, two = sweep.trials
    sweep.start(one)
    sweep.start(two)
    sweep.train(two)
    sweep.pruning.withdraw(one)
    assert sweep.pruning.finish(two, unless=lambda: False) is None, "nothing is before it now"
    sweep.start(one)
    sweep.train(one)
    assert (sweep.pruning.pruned(one) is not None) == (sweep.curve(one)[0] > sweep.curve(two)[0])


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_a_value_that_is_not_finite_is_the_poorest(odd):
    sweep = Sweep("asha:3", [[odd] * 9, [1.0] * 9, [2.0] * 9])
    result = sweep.run(1, random.Random(0))
    assert result[1] is None
    if math.isnan(odd):
        assert result[0] is not None and result[0].step == 10


def test_values_that_are_told_again_count_once():
    sweep = Sweep("asha:2", [[1.0] * 9, [2.0] * 9])
    one, two = sweep.trials
    sweep.start(one)
    for _ in range(3):
        sweep.pruning.report(one, 1, [(10, 0.0, 1.0)])
    sweep.start(two)
    sweep.pruning.report(two, 1, [(10, 0.0, 2.0), (20, 0.0, 0.1)])
    assert sweep.pruning.pruned(two) == Pruned(10, 2.0)

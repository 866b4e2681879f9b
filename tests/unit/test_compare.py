"""The tool that runs a notebook plain and on engines: what it takes for a training cell, and for a difference."""

from __future__ import annotations

import pickle

import numpy as np
import torch

from tests.notebook.compare import cells_of, differences, lines_apart, training_cells, write_names


def test_training_cells_are_those_that_step_by_themselves_or_through_functions(tmp_path):
    script = tmp_path / "script.py"
    trainer = "class Trainer:\n    def fit(self):\n        self.epoch()\n    def epoch(self):\n        loss.backward()\n"
    steps = "%%time\nTrainer().fit()\n####################\noptimizer.step()\n"
    script.write_text(f"!pip install x\nimport torch\n# %%\n{trainer}# %%\nscaler = make()\n# %%\n{steps}# %%\nlibrary.learn(model)\n")
    cells = cells_of(script)
    assert cells[0] == "import torch"
    assert training_cells(cells, set()) == {3, 4}
    assert training_cells(cells, {"learn"}) == {3, 4, 5}


def test_names_that_differ_are_told_with_their_places(tmp_path):
    def written(**names):
        write_names(str(tmp_path / "names"), names)
        return pickle.loads((tmp_path / "names").read_bytes())

    model = torch.nn.Linear(2, 1)
    state, history = {"weight": torch.ones(2)}, [1.0, float("nan"), {"a": np.arange(3)}]
    one = written(model=model, state=state, history=history, text="same", _hidden=1, function=print)
    assert set(one) == {"model", "state", "history", "text"}
    assert not list(differences(one, written(model=model, state=state, history=history, text="same"), 1e-9))
    with torch.no_grad():
        model.bias.add_(1e-6)
    other = written(model=model, state={"weight": torch.ones(3)}, history=[*history, 2.0], text="other")
    assert not list(differences(one["model"], other["model"], 1e-3))
    apart = dict(differences(one, other, 1e-9))
    places = ["['model']['state']['bias']", "['state']['weight']", "['history']: 3 and 4 items", "['text']: 'same' and 'other'"]
    assert list(apart) == places
    assert 0 < apart[places[0]] < 1e-3


def test_printed_lines_may_differ_in_times_and_last_digits():
    assert lines_apart("took 3.1 s\nloss 0.25\n", "took 2.0 s\nloss 0.24\n", 1e-9) is None
    assert lines_apart("epoch 1\nloss 0.25\n", "epoch 1\nloss 0.27\n", 1e-9) == "'loss 0.25' and 'loss 0.27'"
    assert lines_apart("epoch 1\n", "epoch 2\n", 1e-9) == "'epoch 1' and 'epoch 2'"
    assert lines_apart("epoch 1\n", "epoch 1\nepoch 2\n", 1e-9) == "1 and 2 lines"

"""``--vary … --search``: trials that are drawn, and poor ones that are stopped early, the same ones on any number of engines."""

from __future__ import annotations

import re

import pytest

from bench.sweep import compared
from tests.notebook.kernel import SESSION, difference
from tests.notebook.test_trials import note, rows

SETUP = """
import time
torch.manual_seed(0)
x = torch.randn(96, 4)
y = x.sin().sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
lr, PACE = 0.5, 0.0
"""
CELL = """
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
for epoch in range(18):
    for a, b in loader:
        loss = F.mse_loss(model(a), b)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        time.sleep(PACE)
    with torch.no_grad():
        score = F.mse_loss(model(x), y).item()
"""
STATE = "([p.detach() for p in model.parameters()], optimizer.state_dict(), lr, score, torch.rand(3).tolist())"
LINE = "--vary lr=log:1e-4..0.3 --search asha:6,seed=2 --best score"


@pytest.fixture
def searching(notebook):
    return notebook


def recorded(notebook, last):
    """Return of the last runs of the record what must not depend on when and where they ran."""
    store = f"{SESSION}.get()._store"
    notebook.run(
        f"_runs = {{r.hyperparameters['lr']: (r.phase, r.error, r.arguments['search'], "
        f"{{n: (c.step, c.value) for n in ('loss', 'score', 'learning_rate') for c in [{store}.points(r.run_id, n)]}}) "
        f"for r in {store}.list_runs()[-{last}:]}}"
    )
    return notebook.value("_runs")


@pytest.mark.long
def test_poor_trials_are_stopped_early_and_the_same_ones_on_any_engines(searching):
    searching.run(SETUP)
    cell = searching.run(f"%%distribute --engines 1 {LINE}" + CELL)
    alone, state, table = recorded(searching, 6), searching.value(STATE), [line.split()[:5] for line in rows(cell)]
    phases = [phase for phase, *_ in alone.values()]
    assert {*phases} == {"finished", "pruned"}
    assert note(cell).endswith(f"{phases.count('pruned')} of 6 trials were stopped early.")
    for phase, error, search, curves in alone.values():
        assert (error, search) == (None, "asha:6,seed=2,min_resource=1,reduction_factor=3")
        steps, values = curves["score"]
        assert steps == [6 * epoch for epoch in range(1, len(steps) + 1)], "one for each epoch"
        assert len(values) in ((1, 3, 9) if phase == "pruned" else (18,))
        assert curves["loss"][0] == [*range(1, steps[-1] + 1)], "what was trained until it was stopped is taken back"
    assert re.search(r"pruned at step (6|18|54) ", "\n".join(rows(cell)))

    searching.run(SETUP + "PACE = 0.002")  # other moments
    cell = searching.run(f"%%distribute --engines 2 {LINE}" + CELL)
    assert recorded(searching, 6) == alone
    assert difference(searching.value(STATE), state) is None
    assert [line.split()[:5] for line in rows(cell)] == table

    best = searching.value("lr")
    searching.run(SETUP)
    searching.run("%%distribute --engines 2 " + LINE.replace("asha:6", "random:6") + CELL)
    whole = recorded(searching, 6)
    assert searching.value("lr") == best, "what is found with fewer steps"
    assert [phase for phase, *_ in whole.values()] == ["finished"] * 6
    assert sum(len(curves["loss"][0]) for *_, curves in alone.values()) < 0.6 * sum(len(curves["loss"][0]) for *_, curves in whole.values())
    for lr, (*_, curves) in alone.items():  # equal seeds draw equal trials, and each is the same as far as it goes
        steps, values = curves["loss"]
        assert (whole[lr][-1]["loss"][0][: len(steps)], whole[lr][-1]["loss"][1][: len(values)]) == (steps, values)

    searching.run(SETUP + f"lr = {best!r}" + CELL)
    assert difference(searching.value(STATE), state) is None, "the number that is shown and recorded is the one that was trained with"


def test_values_that_the_cell_logs_count(searching):
    searching.run("import jupyter_dtrain as dtrain\nlevel = 0")
    cell = searching.run(
        "%%distribute --engines 2 --vary level=int:1..4 --search asha:4 --best score:max\n"
        "import time\n"
        "for epoch in range(1, 10):\n"
        "    dtrain.log(score=level * epoch)\n"
        "    time.sleep(0.05)\n"
        "result = level"
    )
    assert searching.value("(level, result)") == (4, 4)
    assert "★" in next(line for line in rows(cell) if " 4 " in line)
    searching.run("%%distribute --engines 2 --vary level=int:1..4 --search random:9 --best score:max\nscore = level")
    assert searching.value("level") == 4


def test_a_search_says_what_it_cannot_do(searching):
    searching.run("level = 0")
    cell = searching.run("%%distribute --engines 2 --vary level=1,2 --search asha:5 --best score\nscore = level")
    assert "--search asha:5,seed=0,min_resource=1,reduction_factor=3: there are 2 different combinations of values" in cell.stderr
    assert "No trial could be stopped early: each had a value of 'score' at its end alone." in note(cell)
    cell = searching.run("%%distribute --engines 2 --vary level=1,2 --search asha:2 --best missing\nscore = level")
    assert "no trial has a finite value of 'missing'" in note(cell)
    assert cell.stderr.count("has ended without a number 'missing', so no trial can be stopped early") == 1
    cell = searching.fail("%%distribute --vary level=log:1..2\nscore = level")
    assert cell.error[0] == "UsageError"
    assert "a range is for a search: add --search random:20" in cell.error[1]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_best_of_a_grid_is_found_in_a_third_of_the_time():
    grid, search = compared(engines=2, epochs=27)
    assert (search.best, search.val_loss) == (grid.best, grid.val_loss)
    assert search.pruned >= 18
    assert search.engine_seconds <= 0.3 * grid.engine_seconds

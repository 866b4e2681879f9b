"""A strategy that another package brings: it is found by its entry point, described in the help, and runs cells on the engines."""

from __future__ import annotations

import pytest

PACKAGE = {
    "step_counting/__init__.py": """
from jupyter_dtrain.strategies import Feature, StrategyInfo

INFO = StrategyInfo(
    name="counting",
    summary="is data parallel and counts its steps",
    implementation="step_counting.strategy:Counting",
    supports=frozenset(Feature) - {Feature.BEST, Feature.PAUSE},
)
LOST = StrategyInfo(name="lost", summary="is nowhere", implementation="step_counting.nowhere:Lost")
""",
    "step_counting/strategy.py": """
from contextlib import contextmanager

from torch.optim.optimizer import register_optimizer_step_post_hook

from jupyter_dtrain.engine.strategies.data_parallel.strategy import DataParallel


class Counting(DataParallel):
    num_steps = 0

    @contextmanager
    def installed(self):
        hook = register_optimizer_step_post_hook(self._count)
        try:
            with super().installed():
                yield
        finally:
            hook.remove()

    def _count(self, *_):
        self.num_steps += 1

    def advise(self):
        super().advise()
        mesh = self.context.mesh
        self.context.reports.notes.say(f"{self.num_steps} steps, dp {mesh.index('dp')} of {mesh.degree('dp')}")
""",
    "step_counting-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: step-counting\nVersion: 1.0\n",
    "step_counting-1.0.dist-info/entry_points.txt": """
[jupyter_dtrain.strategies]
counting = step_counting:INFO
lost = step_counting:LOST
""",
}
SETUP = """
torch.manual_seed(3)
inputs = torch.randn(40, 4)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=10, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
CELL = """
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site-packages")
    for name, text in PACKAGE.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def installed(notebook, folder):
    """The shared notebook, with the package of the strategy installed."""
    notebook.run(f"import sys; sys.path.insert(0, {str(folder)!r})")
    yield notebook
    notebook.run(f"sys.path.remove({str(folder)!r})")


def test_a_strategy_of_another_package_runs_a_cell(installed):
    installed.run(SETUP + CELL)
    expected = installed.value("(model.weight.tolist(), loss.item())")
    installed.run(SETUP)
    cell = installed.run(f"%%distribute --engines 2 --strategy counting{CELL}")
    weight, loss = installed.value("(model.weight.tolist(), loss.item())")
    assert weight[0] == pytest.approx(expected[0][0], abs=1e-12)
    assert loss == pytest.approx(expected[1], abs=1e-12)
    assert "4 steps, dp 0 of 2" in cell.stderr


def test_the_help_describes_it(installed):
    shown = " ".join(installed.run("%%distribute --help\n").stdout.split())
    assert "zero1 also shards optimizer state (ZeRO stage 1)" in shown
    assert "counting is data parallel and counts its steps" in shown


def test_an_option_that_it_does_not_support_is_refused(installed):
    cell = installed.fail(f"%%distribute --engines 2 --strategy counting --best loss{CELL}")
    assert cell.error[0] == "UsageError"
    assert "--best needs snapshots of the cell, to keep the best of, which --strategy counting does not have" in cell.error[1]


def test_one_that_engines_cannot_import_is_an_error_and_changes_nothing(installed):
    installed.run(SETUP)
    cell = installed.fail(f"%%distribute --engines 2 --strategy lost{CELL}")
    assert cell.error[0] == "ImportError"
    assert "--strategy lost is step_counting.nowhere:Lost, which the engines cannot import: No module named" in cell.error[1]
    assert installed.run("%%distribute --engines 2\n1 + 1").result == "2"

"""Stages, columns and groups of both over hosts: one process's numbers, and nothing lost with an engine or a host."""

from __future__ import annotations

import pytest
import torch

from tests.hosts.test_several_hosts import TRAIN, WEIGHTS, hosts_of
from tests.hosts.test_zero1_on_hosts import MOMENTS, WIDE, assert_all_same, state

BRIEF = TRAIN.format(epochs=2, pause=0)


@pytest.fixture(scope="module")
def expected(notebook):
    """What one process comes to in two epochs."""
    notebook.run(WIDE + BRIEF)
    return state(notebook)


@pytest.mark.parametrize(
    ("options", "hosts"),
    [
        pytest.param("--mesh dp=2,pp=2", "h1:2,h2:2"),
        pytest.param("--strategy pipeline", "h1:1,h2:1", marks=pytest.mark.long),
        pytest.param("--strategy pipeline", "h1:2,h2:1", marks=pytest.mark.long),
        pytest.param("--strategy tensor", "h1:1,h2:1", marks=pytest.mark.long),
        pytest.param("--mesh dp=2,tp=2", "h1:2,h2:2", marks=pytest.mark.long),
        pytest.param("--mesh dp=2,dp_shard=2", "h1:2,h2:2", marks=pytest.mark.long),
    ],
)
def test_a_cell_comes_to_the_same(notebook, expected, options, hosts):
    notebook.run(WIDE)
    cell = notebook.run(f"%%distribute --hosts {hosts} {options}\n{BRIEF}")
    assert cell.notices == []
    assert notebook.value("where") == "h1"
    assert_all_same(notebook, expected)


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "engines", "goes"),
    [("--strategy pipeline", 1, 9), ("--strategy tensor", 1, 8), ("--mesh dp=2,dp_shard=2", 2, 10)],
)
@pytest.mark.parametrize("how", ["killed", "switched off"])
def test_an_engine_or_its_host_is_lost(notebook, lab, options, engines, goes, how):
    """The first rank of the second host, once by a signal and once with its host, another one for each way to divide a model."""
    away = {"killed": 2, "switched off": goes}[how]
    notebook.run(WIDE)
    notebook.run(f"%distribute start --hosts h1:{engines},h{away}:{engines}")
    notebook.run(f"%%distribute {options}\n{TRAIN.format(epochs=8, pause=0)}")
    (weights, losses), moments = state(notebook)
    notebook.run(WIDE)
    pid = notebook.engines()[engines]
    cell = notebook.start(f"%%distribute {options}\n{TRAIN.format(epochs=8, pause=0.2)}")
    notebook.wait_for_stdout(cell, "epoch 3")
    if how == "killed":
        lab[away].run(["kill", "-9", pid])
    else:
        lab[away].lose()
    notebook.finish(cell)
    assert cell.ok, cell.traceback
    assert any("Lost rank" in notice and "resuming from step" in notice for notice in cell.notices), cell.notices
    assert hosts_of(notebook) == ["h1"] * engines + ["h2" if how == "killed" else "h1"] * engines
    assert notebook.value("losses") == losses
    for found, wanted in [*zip(notebook.value(WEIGHTS), weights, strict=True), *zip(notebook.value(MOMENTS), moments, strict=True)]:
        assert torch.equal(found, wanted)


LARGE = """
torch.manual_seed(0)
inputs = torch.randn(64, 512)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16)
model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 512), nn.Tanh()) for _ in range(4)], nn.Linear(512, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
"""
STEPS = """%%distribute
for epoch in range({epochs}):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
"""


@pytest.mark.long
def test_rows_of_a_group_that_has_a_host_go_over_the_network_once_in_a_step(notebook, lab):
    """Twelve more steps of `zero3` are rows in each forward and each backward pass, and gradients; of groups a third of that."""
    sent = {}
    for options in ("--strategy zero3", "--mesh dp=2,dp_shard=2"):
        of_cells = []
        for epochs in (1, 4):
            notebook.run(LARGE)
            before = lab[1].bytes()[0]
            notebook.run(STEPS.format(epochs=epochs).replace("%%distribute", f"%%distribute --hosts h1:2,h2:2 {options}"))
            of_cells.append(lab[1].bytes()[0] - before)
        sent[options] = (of_cells[1] - of_cells[0]) / 12 / notebook.value("sum(p.nbytes for p in model.parameters())")
    zero3, groups = sent.values()
    assert zero3 == pytest.approx(3, rel=0.2)
    assert groups == pytest.approx(1, rel=0.2)

"""``--compress`` and ``--sync-every`` as a user comes to it: one line, about the same result, and what is refused before the first step."""

from __future__ import annotations

import pytest

from tests.notebook.kernel import difference

SETUP = """
import jupyter_dtrain
torch.set_default_dtype(torch.float32)
torch.manual_seed(1)
inputs = torch.randn(96, 6)
targets = torch.sin(inputs.sum(1, keepdim=True))
loader = DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
losses = []
"""
CELL = """
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
kept = jupyter_dtrain.gather([p.detach().clone() for p in model.parameters()])
"""
STATE = "([p.detach() for p in model.parameters()], losses)"


def run(notebook, line: str):
    notebook.run(SETUP)
    shown = notebook.run(line + CELL)
    return notebook.value(STATE), shown


@pytest.mark.parametrize("strategy", ["", pytest.param(" --strategy zero1", marks=pytest.mark.long)])
def test_a_line_says_how_numbers_differ_and_all_engines_have_the_same(notebook, strategy):
    (plain, plain_losses), shown = run(notebook, f"%%distribute --engines 2{strategy}")
    assert not any("--compress" in line for line in shown.notices)
    (found, losses), shown = run(notebook, f"%%distribute --engines 2 --compress bf16{strategy}")
    assert [line for line in shown.notices if "--compress bf16" in line and "8 significant bits" in line and "differ" in line]
    assert losses[0] == plain_losses[0]
    assert notebook.value("all(torch.equal(*both) for both in zip(*kept))")
    assert 0 < max((a - b).abs().max().item() for a, b in zip(found, plain, strict=True)) < 0.02


def test_one_engine_has_nothing_to_exchange(notebook):
    plain, _ = run(notebook, "%%distribute --engines 1")
    found, shown = run(notebook, "%%distribute --engines 1 --compress bf16")
    assert difference(found, plain) is None
    assert not any("--compress" in line for line in shown.notices)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("--strategy zero3", "--strategy zero3 does not have: leave out one of the two."),
        ("--strategy pipeline", "--strategy pipeline does not have: leave out one of the two."),
        ("--mesh dp=1,tp=2", "--strategy tensor does not have: leave out one of the two."),
        ("--strategy none", "--strategy none does not have: leave out one of the two."),
        ("--verify first", "--compress fp16 changes numbers: leave out one of the two."),
        ("--sync-every 4", "--compress fp16 is about gradients, which --sync-every 4 does not exchange: leave out one of the two."),
        ("--compress bf8", "--compress bf8: choose none or bf16 or fp16."),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(notebook, other, said):
    notebook.run(SETUP)
    engines = "" if "mesh" in other else "--engines 2 "
    refused = notebook.fail(f"%%distribute {engines}--compress fp16 {other}{CELL}")
    assert refused.error[0] == "UsageError"
    assert refused.error[1].count(said) == 1
    assert notebook.value("losses") == []


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("--strategy zero1", "needs steps of each engine by itself, which --strategy zero1 does not have: leave out one of the two."),
        ("--strategy zero3", "which --strategy zero3 does not have: leave out one of the two."),
        ("--strategy pipeline", "which --strategy pipeline does not have: leave out one of the two."),
        ("--strategy tensor", "which --strategy tensor does not have: leave out one of the two."),
        ("--strategy none", "which --strategy none does not have: leave out one of the two."),
        ("--verify first", "--verify compares with one process, and --sync-every 4 changes numbers: leave out one of the two."),
        ("--best loss", "--best keeps an epoch's last checkpoint; --sync-every 4 has some after exchanges alone"),
        ("--semantics local", "--sync-every 4 needs the global view: leave out --semantics local."),
        ("--sync-every 0", "--sync-every 0: give the steps from one exchange to the next, from 1 up."),
    ],
)
def test_what_steps_by_themselves_cannot_be_combined_with_is_refused_in_a_sentence(notebook, other, said):
    notebook.run(SETUP)
    refused = notebook.fail(f"%%distribute --engines 2 --sync-every 4 {other}{CELL}")
    assert refused.error[0] == "UsageError"
    assert refused.error[1].count(said) == 1
    assert notebook.value("losses") == []


def test_engines_step_by_themselves_and_end_with_the_same(notebook):
    (plain, plain_losses), _ = run(notebook, "%%distribute --engines 2")
    (found, losses), shown = run(notebook, "%%distribute --engines 2 --sync-every 5")
    assert [line for line in shown.notices if "--sync-every 5: each engine steps on its own part" in line and "differ" in line]
    assert losses[0] == plain_losses[0]
    assert notebook.value("all(torch.equal(*both) for both in zip(*kept))")
    assert 0 < max((a - b).abs().max().item() for a, b in zip(found, plain, strict=True)) < 0.2
    assert losses[-1] < losses[0]
    assert notebook.value("all(type(p) is nn.Parameter and p.grad is not None for p in model.parameters())")
    notebook.run("optimizer.zero_grad(); F.mse_loss(model(inputs), targets).backward(); optimizer.step()")


def test_a_branch_that_a_parameter_decides_is_the_same_on_all_engines(notebook):
    notebook.run(SETUP)
    cell = CELL.replace("    losses.append(loss.item())\n", "    if model[0].weight.norm() > 3.5 or loss.item() < 0.3:\n        break\n")
    shown = notebook.run(f"%%distribute --engines 2 --sync-every 5{cell}count = jupyter_dtrain.gather(optimizer.state[model[0].bias])\n")
    assert any("averages parameters where the cell reads them (line " in line for line in shown.notices)
    assert notebook.value("all(torch.equal(count[0][key], count[1][key]) for key in count[0])")

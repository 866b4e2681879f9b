"""``--strategy zero1`` as a user comes to it: the optimizer comes home whole, and the next cell goes on with it, shared out or not."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_dtrain.protocol import COMMAND_TARGET
from tests.conftest import one_of
from tests.notebook.kernel import difference

SETUP = """
import time
torch.set_default_dtype(torch.float64)
torch.manual_seed(1)
inputs = torch.randn(45, 6)
targets = torch.sin(inputs.sum(1, keepdim=True))
loader = DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)
losses, kept = [], []
"""
CELL = """
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    losses.append(loss.item())
"""
NOTING = "\nkept.append(jupyter_dtrain.gather(len(vars(optimizer)['state'])))"
STATE = "(model.state_dict(), optimizer.state_dict(), scheduler.state_dict(), losses)"


def run(notebook, *first_lines: str, setup: str = SETUP, cell: str = CELL):
    notebook.run("import jupyter_dtrain\n" + setup)
    shown = [notebook.run(line + cell) for line in first_lines]
    return notebook.value(STATE), shown


def test_cell_after_cell_in_any_strategy(notebook):
    expected, _ = run(notebook, *["%%distribute --engines 3"] * 4)
    lines = [f"%%distribute --engines 3 --strategy {kind}" for kind in ("zero1", "zero1", "auto", "zero1")]
    found, shown = run(notebook, *lines, cell=CELL + NOTING)
    notebook.run("optimizer.step()")  # plain, with all of it
    for of_cell in found[1]["state"].values():
        assert of_cell["step"].item() == 24
    assert str(found) == str(expected)
    assert difference(found, expected) is None
    assert [sum(of_ranks) for of_ranks in notebook.value("kept")] == [6, 6, 18, 6]
    assert all("zero1" not in cell.stderr for cell in shown)


def test_every_bit_is_that_of_auto(notebook):
    bits = f"[value.numpy().tobytes() for value in torch.utils._pytree.tree_leaves({STATE}[:2]) if isinstance(value, torch.Tensor)]"
    run(notebook, *["%%distribute --engines 2"] * 3)
    expected = notebook.value(bits)
    run(notebook, *["%%distribute --engines 2 --strategy zero1"] * 3)
    assert notebook.value(bits) == expected


def test_the_notebooks_own_tensors_have_the_new_numbers(notebook):
    run(notebook, "%%distribute --engines 2")
    notebook.run("before, first = optimizer.state_dict(), optimizer.state[model[0].weight]")
    notebook.run("%%distribute --engines 2 --strategy zero1" + CELL)
    assert notebook.value("first is optimizer.state[model[0].weight]")
    same = "all(before['state'][k][n] is v for k, kept in optimizer.state_dict()['state'].items() for n, v in kept.items())"
    assert notebook.value(same)
    assert notebook.value("{kept['step'].item() for kept in before['state'].values()}") == {12.0}


def test_one_engine_has_nothing_to_share_out(notebook):
    expected, _ = run(notebook, "%%distribute --engines 1")
    found, _ = run(notebook, "%%distribute --engines 1 --strategy zero1", cell=CELL + NOTING)
    assert difference(found, expected) is None
    assert notebook.value("kept") == [[6]]


@pytest.mark.parametrize("options", ["--semantics local", "--batch-size per-rank"])
def test_with_other_conventions(notebook, options):
    expected, _ = run(notebook, *[f"%%distribute --engines 2 {options}"] * 2)
    found, _ = run(notebook, *[f"%%distribute --engines 2 --strategy zero1 {options}"] * 2, cell=CELL + NOTING)
    assert difference(found, expected) is None
    assert [sum(of_ranks) for of_ranks in notebook.value("kept")] == [6, 6]


def test_an_optimizer_that_only_goes_along(notebook):
    run(notebook, "%%distribute --engines 2 --strategy zero1")
    before = notebook.value(STATE)
    notebook.run(
        "%%distribute --engines 2 --strategy zero1\nrate = optimizer.param_groups[0]['lr']\nloss = F.mse_loss(model(inputs), targets)"
    )
    assert difference(notebook.value(STATE), before) is None


OWN = """
class Signed(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.01})
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["count"] = self.state[p].get("count", 0) + 1
                p -= group["lr"] * p.grad.sign()
optimizer = Signed(model.parameters())
"""
"""An optimizer of the notebook's own."""


def test_one_that_is_not_known_says_so_and_comes_to_the_same(notebook):
    own = OWN + "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5)\n"
    expected, _ = run(notebook, "%%distribute --engines 2", setup=SETUP + own)
    found, (cell,) = run(notebook, "%%distribute --engines 2 --strategy zero1", setup=SETUP + own)
    assert difference(found, expected) is None
    assert cell.stderr.count("The state of `Signed` is not sharded") == 1


def test_a_checkpoint_has_all_of_it(notebook):
    run(notebook, "%%distribute --engines 3 --strategy zero1 --checkpoint-every 3 --name shared-out")
    notebook.run("saved = jupyter_dtrain.load_checkpoint('shared-out', 3)")
    assert notebook.value("[kept['step'].item() for kept in saved['optimizer'].state_dict()['state'].values()]") == [3.0] * 6
    found = notebook.value("(saved['model'].state_dict(), saved['optimizer'].state_dict())")
    assert difference(found, after(notebook, 3)[:2]) is None


def after(notebook, steps: int) -> Any:
    """Return what so many steps come to."""
    notebook.run(SETUP)
    for _ in range(-(-steps // 6)):
        notebook.run("import itertools" + CELL.replace("in loader", f"in itertools.islice(loader, {steps} - len(losses))"))
    return notebook.value(STATE)


ENDLESS = f"""
from itertools import count
for epoch in count():
{CELL.replace(chr(10), chr(10) + "    ")}
    if epoch == 1:
        print("two epochs")
"""


@pytest.mark.parametrize("by", ["Stop", "an interrupt"])
def test_stopped(notebook, by):
    commands = notebook.open_comm(COMMAND_TARGET)
    notebook.run(SETUP)
    cell = notebook.start("%%distribute --engines 2 --strategy zero1" + ENDLESS)
    notebook.wait_for_stdout(cell, "two epochs")
    if by == "Stop":
        assert notebook.command(commands, "stop_run")["ok"]
    else:
        notebook.interrupt()
    notebook.finish(cell)
    found = notebook.value(STATE)
    steps = int(found[1]["state"][0]["step"])
    assert {int(kept["step"]) for kept in found[1]["state"].values()} == {steps}
    assert len(found[1]["state"]) == 6
    assert difference(found[:2], after(notebook, steps)[:2]) is None


FAILING = CELL.replace("    losses", "    if len(losses) == 3 and {where}:\n        raise ValueError('no')\n    losses")


@pytest.mark.parametrize("where", one_of(3, ["True", "rank == 0", "rank == 1", "rank == 2"]))
def test_an_error_of_all_ranks_or_of_one(notebook, where):
    """What the others keep of the optimizer comes home in any case."""
    notebook.run("import torch.distributed as dist\n" + SETUP)
    cell = notebook.fail("%%distribute --engines 3 --strategy zero1\nrank = dist.get_rank()" + FAILING.format(where=where))
    assert cell.error == ("ValueError", "no")
    found = notebook.value(STATE)
    assert {int(kept["step"]) for kept in found[1]["state"].values()} == {4}
    assert difference(found[1], after(notebook, 4)[1]) is None
    assert "zero1" not in cell.stderr


def test_an_error_in_the_step_of_one_rank(notebook):
    notebook.run(SETUP)
    notebook.run("words = nn.Embedding(40, 20, sparse=True)\noptimizer.add_param_group({'params': [*words.parameters()]})")
    sparse = CELL.replace("mse_loss(model(x), y)", "mse_loss(model(x), y) + words(torch.arange(len(x))).sum()")
    cell = notebook.fail("%%distribute --engines 3 --strategy zero1" + sparse)
    assert cell.error[0] == "RuntimeError"
    assert cell.error[1].startswith("Adam does not support sparse gradients")
    assert difference(notebook.run("%%distribute --engines 3\n2").result, "2") is None


SWALLOWS = """while True:
            try:
                time.sleep(60)
            except BaseException:
                pass"""


@pytest.mark.parametrize(
    "waits", one_of(3, [SWALLOWS, "time.sleep(60)", "try:\n            time.sleep(60)\n        finally:\n            time.sleep(60)"])
)
def test_broken_off(notebook, waits):
    """The ranks end one by one then, or not at all, and their parts are brought home all the same."""
    notebook.run(SETUP)
    cell = CELL.replace("    losses", f"    if len(losses) == 3:\n        print('waits')\n        {waits}\n    losses")
    running = notebook.start("%%distribute --engines 2 --strategy zero1" + cell)
    notebook.wait_for_stdout(running, "waits")
    notebook.interrupt()
    notebook.finish(running)
    assert running.error[0] == "KeyboardInterrupt"
    assert difference(notebook.value(STATE)[1], after(notebook, 4)[1]) is None
    assert "zero1" not in running.stderr

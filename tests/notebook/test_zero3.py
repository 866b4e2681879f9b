"""``--strategy zero3`` as a user comes to it: what comes home is whole, and to the last bit that of `auto`."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_dtrain.engine.strategies.zero3.eligibility import MAY_WRITE
from tests.notebook.kernel import difference

SETUP = """
import copy
torch.set_default_dtype(torch.float64)
torch.manual_seed(1)
inputs = torch.randn(45, 6)
targets = torch.sin(inputs.sum(1, keepdim=True))
loader = DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 1))
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
NOTING = """
kept.append([tuple(v.shape) for s in vars(optimizer)['state'].values() for v in s.values() if v.dim() > 1])
"""
BLOCKS = "nn.Linear(6, 128), *(nn.Sequential(nn.Linear(128, 128), nn.BatchNorm1d(128), nn.Tanh(), nn.Dropout(0.1)) for _ in range(2))"
FAILING = CELL.replace("    losses", "    if len(losses) == 3 and {where}:\n        raise ValueError('no')\n    losses")
INNER = CELL.replace("\n", "\n    ")
STATE = "(model.state_dict(), optimizer.state_dict(), scheduler.state_dict(), losses, [p.grad for p in model.parameters()])"


def run(notebook, *first_lines: str, cell: str = CELL) -> tuple[Any, list[Any]]:
    notebook.run("import jupyter_dtrain\n" + SETUP)
    shown = [notebook.run(line + cell) for line in first_lines]
    return notebook.value(STATE), shown


def options_of(strategy: str) -> str:
    """Return the options that ask for a strategy on two engines, or for what is one already: a mesh."""
    return strategy if strategy.startswith("--") else f"--engines 2 --strategy {strategy}"


def run_cell_after_cell(notebook, strategy: str) -> tuple[Any, list[Any]]:
    """Run cells under `strategy` and others in turn, compare, and return what `NOTING` notes in each, and the cells."""
    expected, _ = run(notebook, *["%%distribute --engines 2"] * 4)
    lines = [f"%%distribute {options_of(kind)}" for kind in (strategy, strategy, "auto", "zero3")]
    found, shown = run(notebook, *lines, cell=CELL + NOTING)
    notebook.run("optimizer.step()")  # plain, with all of it
    assert difference(found, expected) is None
    assert all("--strategy" not in cell.stderr for cell in shown), [cell.stderr for cell in shown]
    return notebook.value("kept"), shown


def check_a_loop_and_a_checkpoint_of_it(notebook, strategy: str, *resumed: str, name: str = "") -> None:
    """Take snapshots and checkpoints under `strategy`, look at one of them, and go on from it under `zero3`, or as `resumed` says."""
    name = name or f"{strategy}s"
    expected, _ = run(notebook, "%%distribute --engines 2\nfor epoch in range(3):" + INNER)
    options = f"{options_of(strategy)} --checkpoint-every 3 --keep-checkpoints 9 --name {name}"
    found, _ = run(notebook, f"%%distribute {options}\nfor epoch in range(3):{INNER}")
    assert difference(found, expected) is None
    saved = notebook.value(
        f"(lambda saved: (saved['model'].state_dict(), saved['optimizer'].state_dict()))(jupyter_dtrain.load_checkpoint('{name}', 6))"
    )
    for options in resumed or ("--strategy zero3",):
        notebook.run(f"%distribute resume {name}@6 {options}")
        assert difference(notebook.value(STATE), expected) is None, options
    check_after_steps(notebook, 6, saved)


def check_an_error(notebook, strategy: str, where: str) -> None:
    """Have all ranks fail under `strategy`, or one, after four steps: what the engines have is read from where it lies."""
    notebook.run("import torch.distributed as dist\n" + SETUP)
    cell = notebook.fail(f"%%distribute {options_of(strategy)}\nrank = dist.get_rank()" + FAILING.format(where=where))
    assert cell.error == ("ValueError", "no")
    check_after_steps(notebook, 4, notebook.value("(model.state_dict(), optimizer.state_dict())"))


def check_after_steps(notebook, steps: int, found: Any) -> None:
    """Compare model and optimizer with what one process has after so many steps."""
    notebook.run(SETUP + "import itertools" + CELL.replace("in loader", f"in itertools.islice(loader, {steps})"))
    assert difference(found, notebook.value("(model.state_dict(), optimizer.state_dict())")) is None


def test_cell_after_cell_in_any_strategy(notebook):
    kept, shown = run_cell_after_cell(notebook, "zero3")
    assert all("zero3" not in cell.stderr for cell in shown), [cell.stderr for cell in shown]
    assert (64, 128) in kept[0]
    assert (64, 128) not in kept[2]


def test_a_loop_that_takes_snapshots(notebook):
    expected, _ = run(notebook, "%%distribute --engines 2\nfor epoch in range(3):" + INNER)
    found, _ = run(notebook, "%%distribute --engines 2 --strategy zero3 --checkpoint-every 2\nfor epoch in range(3):" + INNER)
    assert difference(found, expected) is None


def test_a_checkpoint_is_what_any_strategy_has_at_that_step(notebook):
    run(
        notebook,
        f"%%distribute --engines 2 --strategy zero3 --checkpoint-every 3 --keep-checkpoints 9 --name whole\nfor _ in range(1):{INNER}",
    )
    found = notebook.value(
        "(lambda saved: (saved['model'].state_dict(), saved['optimizer'].state_dict()))(jupyter_dtrain.load_checkpoint('whole', 3))"
    )
    check_after_steps(notebook, 3, found)


def test_the_notebooks_own_tensors_have_the_new_numbers(notebook):
    """Also where names hold them that the cell does not know of."""
    run(notebook, "%%distribute --engines 2")
    notebook.run("before, weights = optimizer.state_dict(), model.state_dict()")
    cell = notebook.run("%%distribute --engines 2 --strategy zero3" + CELL + NOTING)
    same = "all(before['state'][k][n] is v for k, kept in optimizer.state_dict()['state'].items() for n, v in kept.items())"
    assert notebook.value(same)
    assert notebook.value("all(torch.equal(weights[key], value) for key, value in model.state_dict().items())")
    assert (64, 128) in notebook.value("kept")[0]
    assert "zero3" not in cell.stderr


def test_what_the_cell_holds_of_an_optimizer_follows_it_as_in_one_process(notebook):
    expected, _ = run(notebook, *["%%distribute --engines 2"] * 2)
    run(notebook, "%%distribute --engines 2")
    notebook.run("state = optimizer.state_dict()")
    cell = notebook.run(
        "%%distribute --engines 2 --strategy zero3" + CELL + "moments = [v['exp_avg'].sum().item() for v in state['state'].values()]"
    )
    assert difference(notebook.value(STATE), expected) is None
    assert notebook.value("moments == [v['exp_avg'].sum().item() for v in optimizer.state_dict()['state'].values()]")
    assert "`--strategy zero3` does not shard the state of `Adam` while the cell holds a part of it." in cell.stderr


@pytest.mark.parametrize("where", ["True", pytest.param("rank == 0", marks=pytest.mark.long), "rank == 1"])
def test_an_error_of_all_ranks_or_of_one(notebook, where):
    """Whether they have left or not."""
    check_an_error(notebook, "zero3", where)


def test_activations_are_computed_again_where_parameters_are_sharded(notebook):
    blocks = SETUP.replace("nn.Linear(6, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh()", BLOCKS)
    notebook.run("import jupyter_dtrain\n" + blocks)
    notebook.run("%%distribute --engines 2" + CELL)
    expected = notebook.value(STATE)
    notebook.run(blocks)
    notebook.run("%%distribute --engines 2 --strategy zero3 --checkpoint-activations" + CELL + NOTING)
    assert difference(notebook.value(STATE), expected) is None
    assert (64, 128) in notebook.value("kept")[0]


def test_an_option_that_it_does_not_support_is_refused(notebook):
    cell = notebook.fail(f"%%distribute --engines 2 --strategy zero3 --verify first{CELL}")
    assert cell.error[0] == "UsageError"
    assert cell.error[1].count("which --strategy zero3 does not have: leave out one of the two.") == 1


def test_without_global_semantics_everything_is_on_every_engine_and_a_line_says_so(notebook):
    _, (cell,) = run(notebook, "%%distribute --engines 2 --strategy zero3 --semantics local")
    assert "`--strategy zero3` shards parameters of engines that compute on CPUs, with global semantics." in cell.stderr


@pytest.mark.parametrize("writes", ["self.seen.add_(x.mean().detach())", "self.training or self.last.weight.data.clamp_(-1, 1)"])
def test_only_what_stays_on_every_engine_is_named(notebook, writes):
    """An open model's own code may write, and that of its parts does not: these are sharded."""
    notebook.run(
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('seen', torch.zeros(()))\n"
        "        self.first, self.last = nn.Linear(4, 4096), nn.Linear(4096, 1)\n"
        f"    def forward(self, x):\n        {writes}\n        return self.last(torch.tanh(self.first(x)))\n"
        "model = Net()\noptimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "loader = DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=8)"
    )
    cell = notebook.run(
        "%%distribute --engines 2 --strategy zero3\nfor x, in loader:\n    loss = model(x).pow(2).mean()\n    optimizer.zero_grad()\n"
        "    loss.backward()\n    optimizer.step()\nsharded = type(model.first.weight) is not nn.Parameter"
    )
    kept = [line for line in cell.notices if "on every engine" in line]
    assert kept == ([] if "seen" in writes else [f"`--strategy zero3` keeps `first.weight` of `Net` on every engine: {MAY_WRITE}."])
    assert notebook.value("sharded") == (not kept)


HOLDING = "held = [p.grad for p in model.parameters()]\n"
ADDING = """
import gc
optimizer.zero_grad(set_to_none=False)
F.mse_loss(model(inputs), targets).backward()
kept.append(sum(one.has_rows for one in gc.get_objects() if type(one).__name__ == "ParameterShard"))
"""
SAME = "[a is p.grad for a, p in zip(held, model.parameters())]"


@pytest.mark.parametrize(
    ("before", "within", "num_sharded"), [("", "", 2), (HOLDING, "", 2), (HOLDING, f"losses.append({SAME})\n", 0), ("", HOLDING, 2)]
)
def test_gradients_under_other_names_stay_those_of_parameters(notebook, before, within, num_sharded):
    """Those of the notebook are sharded unless the cell can see them; at the end they are the very tensors."""
    states = []
    for line in ("", "%%distribute --engines 2 --strategy zero3\n"):
        notebook.run(f"import jupyter_dtrain\n{SETUP}F.mse_loss(model(inputs), targets).backward()\nheld = []\n{before}")
        notebook.run(f"{line}{ADDING}{within}")
        notebook.run("losses.append(sum(g.sum().item() for g in held))")
        states.append(notebook.value(f"([p.grad for p in model.parameters()], {SAME}, held, losses)"))
    assert difference(*states) is None
    assert all(states[0][1])
    assert notebook.value("kept") == [num_sharded]

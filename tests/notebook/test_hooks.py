"""Hooks that one cell registers and another one removes, on engines and in the notebook."""

from __future__ import annotations

import pytest

CELL = "%%distribute --engines 2"
MODEL = """
from collections import Counter
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(8, 4), torch.randn(8, 1)), batch_size=4)
calls = Counter()

def counting(name):
    return lambda *args: calls.update([name])

def train():
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    "register",
    [
        "model[0].weight.register_hook(lambda g: calls.update(['called']) or g * 0.5)",
        "model[2].bias.register_post_accumulate_grad_hook(counting('called'))",
        "model[0].register_forward_hook(counting('called'))",
        "optimizer.register_step_pre_hook(counting('called'))",
    ],
)
def test_the_cell_removes_a_hook_of_the_notebook(notebook, register):
    notebook.run(f"{MODEL}handle = {register}\nother = model[0].weight.register_hook(counting('other'))")
    notebook.run(f"{CELL}\ntrain()\nhandle.remove()\ntrain()\nseen = dict(calls)")
    assert notebook.value("seen") == {"called": 2, "other": 4}
    notebook.run("train()\nother.remove()\ntrain()")
    assert notebook.value("dict(calls)") == {"called": 2, "other": 6}
    notebook.run(f"{CELL}\ntrain()")
    assert notebook.value("dict(calls)") == {"called": 2, "other": 6}


def test_new_hooks_do_not_replace_older_ones(notebook):
    """PyTorch numbers the hooks of a process, and a module has one of each number."""
    register = "for _ in range(150):\n    model[0].register_forward_hook(counting({0!r}))\n"
    notebook.run(MODEL + register.format("plain"))
    notebook.run(f"{CELL}\n{register.format('engines')}train()")
    assert notebook.value("dict(calls)") == {"plain": 300, "engines": 300}
    notebook.run(f"calls.clear()\n{register.format('later')}model(torch.ones(1, 4))")
    assert notebook.value("dict(calls)") == {"plain": 150, "engines": 150, "later": 150}


@pytest.mark.parametrize(
    "register",
    [
        "model[0].weight.register_hook(lambda g: calls.update(['called']) or g * 0.5)",
        "model[2].bias.register_post_accumulate_grad_hook(counting('called'))",
        "model[2].register_full_backward_hook(counting('called'))",
    ],
)
def test_a_hook_of_the_cell_stays(notebook, register):
    notebook.run(MODEL)
    notebook.run(f"{CELL}\nhandle = {register}\ntrain()\nseen = dict(calls)")
    assert notebook.value("seen") == {"called": 2}
    notebook.run("train()")
    notebook.run(f"{CELL}\ntrain()")
    assert notebook.value("dict(calls)") == {"called": 6}
    notebook.run("handle.remove()\ntrain()")
    notebook.run(f"{CELL}\ntrain()")
    assert notebook.value("dict(calls)") == {"called": 6}


GLOBAL = """
from torch.nn.modules.module import register_module_forward_hook, register_module_full_backward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
handles = [
    register_module_forward_hook(lambda module, args, out: calls.update([f"{type(module).__name__} {len(out)}"])),
    register_module_full_backward_hook(lambda module, given, found: calls.update([f"backward {len(found[0])}"])),
    register_optimizer_step_post_hook(counting("step")),
]
"""


@pytest.mark.filterwarnings("ignore")
def test_hooks_of_all_modules_and_optimizers(notebook):
    found = []
    for magic in ("", CELL):
        notebook.run(MODEL + GLOBAL)
        notebook.run(f"{magic}\ntrain()")
        notebook.run(f"{magic}\nhandles.pop(0).remove()\nlater = register_optimizer_step_post_hook(counting('later'))\ntrain()")
        notebook.run("train()\nlater.remove()\nhandles.pop(0).remove()")
        notebook.run(f"{magic}\ntrain()\nhandles.pop(0).remove()\ntrain()")
        notebook.run(f"{magic}\ntrain()")
        found.append(notebook.value("dict(calls)"))
    assert found[0] == found[1]
    assert found[0] == {"Linear 4": 4, "Tanh 4": 2, "Sequential 4": 2, "step": 8, "backward 4": 24, "later": 4}


def test_a_hook_of_all_optimizers_that_cannot_be_sent(notebook):
    notebook.run(f"{MODEL}{GLOBAL}\nstream = (i for i in range(9))")
    notebook.run("[handle.remove() for handle in handles]\nhandle = register_optimizer_step_post_hook(lambda *args: next(stream))")
    cell = notebook.run(f"{CELL}\ntrain()")
    notebook.run("handle.remove()")
    assert "Hooks of the notebook are not called in this cell, because they cannot be sent: optimizer_post_hooks." in cell.stderr


@pytest.mark.parametrize("strategy", ["auto", "zero1"])
def test_a_step_that_the_notebook_has_wrapped(notebook, strategy):
    wrap = """
inner = optimizer.step
def step(*args, **options):
    calls.update(["step"])
    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    return inner(*args, **options)
optimizer.step = step
"""
    found = []
    for magic in ("", f"{CELL} --strategy {strategy}"):
        notebook.run(MODEL + wrap)
        notebook.run(f"{magic}\ntrain()")
        notebook.run("train()\ndel optimizer.step\ntrain()")
        found.append(notebook.value("model[0].weight.tolist(), dict(calls)"))
    assert found[1][1] == {"step": 4}
    assert found[1][0] == [pytest.approx(row, rel=1e-9) for row in found[0][0]]

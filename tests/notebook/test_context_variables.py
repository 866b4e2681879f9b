"""Context variables of the notebook in distributed cells: the same objects, with the values that were set last."""

from __future__ import annotations

CELL = "%%distribute --engines 2\n"
VARIABLES = """
import contextvars, decimal
level = contextvars.ContextVar("level", default=1)
stack = contextvars.ContextVar("stack")
model = nn.Linear(2, 1)
current = contextvars.ContextVar("current")
current.set(model)
kept = [level, stack, current]

class Config:
    def __init__(self): self.level = level

config = Config()

def scoped(value):
    token = stack.set(value)
    try:
        return [level.get(), stack.get()]
    finally:
        stack.reset(token)
"""
SAME = "[level is kept[0], stack is kept[1], current is kept[2], config.level is level, current.get() is model]"


def test_values_go_to_the_engines_and_come_home(notebook):
    notebook.run(VARIABLES)
    assert notebook.run(f"{CELL}scoped('a'), level.name, stack.get(None), {SAME}").result == f"([1, 'a'], 'level', None, {[True] * 5})"
    assert notebook.value(f"(level.get(), stack.get(None), {SAME})") == (1, None, [True] * 5)
    notebook.run("level.set(5)")
    assert notebook.run(f"{CELL}before = config.level.get(), scoped([2])\nlevel.set(7);\nbefore").result == "(5, [5, [2]])"
    assert notebook.value(f"(level.get(), before, {SAME})") == (7, (5, [5, [2]]), [True] * 5)
    notebook.run(f"{CELL}stack.set(['new']);\nfresh = contextvars.ContextVar('fresh', default=3)\nfresh.set(4);")
    assert notebook.value("(stack.get(), fresh.get(), fresh.name)") == (["new"], 4, "fresh")
    assert notebook.run(f"{CELL}stack.get().append(fresh.get())\nstack.get()").result == "['new', 4]"
    assert notebook.value("stack.get()") == ["new", 4]


def test_a_model_that_a_variable_has_is_the_one_that_is_trained(notebook):
    notebook.run(VARIABLES + "loader = DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=4)\nfirst = model.weight.detach().clone()")
    notebook.run(
        f"{CELL}optimizer = torch.optim.SGD(current.get().parameters(), lr=0.1)\nfor x, in loader:\n    loss = current.get()(x).mean()\n"
        "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()"
    )
    assert notebook.value("(current.get() is model, torch.allclose(model.weight, first - 0.2))") == (True, True)


def test_what_belongs_to_a_context_is_named(notebook):
    notebook.run(VARIABLES)
    cell = notebook.run(f"{CELL}token = level.set(2)\nnumber = level.get()")
    assert [line.partition(",")[0] for line in cell.notices if "stays" in line] == ["'token' stays on the engines"]
    assert notebook.value("(level.get(), number)") == (2, 2)
    notebook.run("token = level.set(3)")
    assert "uses 'token' (a Token), which cannot be sent" in notebook.fail(f"{CELL}level.reset(token)").error[1]


def test_settings_of_the_interpreter_go_both_ways_and_not_to_the_next_cell(notebook):
    seen = "seen = gc.isenabled(), gc.get_threshold(), sys.getrecursionlimit()"
    notebook.run(f"import gc, sys\n{seen}")
    usual = notebook.value("seen")
    notebook.run("gc.disable(); sys.setrecursionlimit(4321)")
    notebook.run(f"%%distribute --engines 2\n{seen}\ngc.enable(); gc.set_threshold(800, 5, 5); sys.setrecursionlimit(1234)")
    assert notebook.value("seen") == (False, usual[1], 4321)
    assert notebook.value(seen.removeprefix("seen = ")) == (True, (800, 5, 5), 1234)
    cell = notebook.fail(f"%%distribute --engines 2\n{seen}\ngc.disable(); sys.setrecursionlimit(6000)\nraise ValueError")
    assert cell.error[0] == "ValueError"
    assert notebook.value(seen.removeprefix("seen = ")) == (False, (800, 5, 5), 6000)
    notebook.run(f"gc.enable(); gc.set_threshold(*{usual[1]}); sys.setrecursionlimit({usual[2]})")
    notebook.run(f"%%distribute --engines 2\n{seen}")
    assert notebook.value("seen") == usual


def test_a_module_of_ones_own_is_imported_once(notebook):
    code = "import torch\nprint('loading')\nW = torch.rand(2)\nSTATE = {'n': 0}\ndef bump(): STATE['n'] += 1; return STATE['n']\n"
    (notebook.folder / "of_mine.py").write_text(code)
    notebook.run("import torch; torch.manual_seed(4)")
    cell = notebook.run("%%distribute --engines 2\nimport of_mine\nfrom of_mine import bump\nbump(); kept = torch.rand(1)")
    assert cell.stdout == "loading\n"
    cell = notebook.run("import of_mine as again\nfrom of_mine import bump as same\nafter = torch.rand(1)")
    assert cell.stdout == ""
    assert notebook.value("again is of_mine, same is bump is of_mine.bump, dict(again.STATE), of_mine.bump()") == (True, True, {"n": 1}, 2)
    drawn = notebook.value("[*of_mine.W.tolist(), kept.item(), after.item()]")
    assert notebook.value("torch.manual_seed(4) and [*torch.rand(2).tolist(), torch.rand(1).item(), torch.rand(1).item()]") == drawn
    notebook.run("%%distribute --engines 2\nfrom of_mine import bump\nbump()")
    assert notebook.value("of_mine.STATE") == {"n": 3}


def test_a_cell_that_awaits_is_a_task_as_in_the_notebook(notebook):
    cell = (
        "import asyncio\nfor _ in range(3):\n    level.set(level.get() + 1)\n    await asyncio.sleep(0)\nseen = level.get()\n"
        "async def read(): return level.get()\nprint(level.get(), await read())"
    )
    for magic in ("", CELL, "%%distribute --engines 1\n"):
        notebook.run(VARIABLES)
        ran = notebook.run(magic + cell)
        assert (ran.stdout, notebook.value("seen, level.get()")) == ("4 4\n", (4, 1))

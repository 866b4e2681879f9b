"""Ids that the notebook and a cell keep of their objects: in both they are those of the notebook's objects."""

from __future__ import annotations

import os
import signal

import pytest

SETUP = """
import functools
net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
loader = DataLoader(TensorDataset(torch.randn(24, 3), torch.randn(24, 1)), batch_size=6)
head_ids = list(map(id, net[2].parameters()))
no_decay, names, seen = {id(net[0].bias), id(net[2].bias)}, {id(p): n for n, p in net.named_parameters()}, set()

def groups(model):
    def is_head(parameter): return id(parameter) in head_ids
    parameters = [*model.parameters()]
    return [[p for p in parameters if not is_head(p)], [p for p in parameters if is_head(p)]]

class Visits:
    def __init__(self): self.of, self.key = set(), id
    def visit(self, module):
        is_new = self.key(module) not in self.of
        self.of.add(id(module))
        return is_new

def is_decayed(parameter, *, key=id): return key(parameter) not in no_decay

all_ids, visits = functools.partial(map, id), Visits()
visits.visit(net)
"""
CELL = """
base = [p for p in net.parameters() if id(p) not in head_ids]
head = filter(lambda p: id(p) in head_ids, net.parameters())
optimizer = torch.optim.SGD([{"params": base, "lr": 0.0}, {"params": head}], lr=0.1, weight_decay=0.0)
for x, y in loader:
    loss = F.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
found = [len(base), [names[id(p)] for p in net.parameters()], [id(p) in no_decay for p in net.parameters()], [*map(len, groups(net))]]
found += [[is_decayed(p) for p in net.parameters()], [i in names for i in all_ids(net.parameters())]]
found += [visits.visit(net), visits.visit(net[0]), id(None) == none, sorted(net.parameters(), key=id)[0] is first]
seen.update(map(id, net.modules()))
more = nn.Linear(2, 2)
ids = {id(more), id(more.weight)} | {id(p) for p in base}
found += [len(ids), id(more) in ids, id(more.bias) in ids, id([]) in ids, id(net) == id(net[0]), isinstance(id(more), int)]
found
"""
AFTER = """(
    found, seen == {*map(id, net.modules())}, ids == {id(more), id(more.weight), *map(id, base)}, id(net[0]) in visits.of,
    visits.key is id is is_decayed.__kwdefaults__['key'] is all_ids.args[0]
)"""
WEIGHTS = "[p.tolist() for p in net.parameters()]"


@pytest.mark.parametrize("engines", [1, 2, 3])
def test_ids_are_those_of_the_notebooks_objects(notebook, engines):
    prepare = f"torch.manual_seed(0)\n{SETUP}\nnone, first = id(None), sorted(net.parameters(), key=id)[0]"
    notebook.run(prepare)
    notebook.run(CELL)
    plain, weights = notebook.value(AFTER), notebook.value(WEIGHTS)
    notebook.run(prepare)
    notebook.run(f"%%distribute --engines {engines}\n{CELL}")
    assert notebook.value(AFTER) == plain == (plain[0], True, True, True, True)
    assert notebook.value(
        f"'id' in globals(), all(torch.allclose(torch.tensor(a), torch.tensor(b)) for a, b in zip({WEIGHTS}, {weights}))"
    ) == (False, True)


def test_a_name_of_the_notebook_or_of_the_cell_is_its_own(notebook):
    notebook.run("def id(x): return 'mine'\nmodel = nn.Linear(1, 1)")
    assert notebook.run("%%distribute --engines 2\nid(model)").result == "'mine'"
    notebook.run("del id")
    assert notebook.run("%%distribute --engines 2\nfor id, value in enumerate('ab'): pass\nmodel, id").result.endswith(", 1)")
    assert notebook.value("id") == 1
    notebook.run("del id")


def test_a_library_that_is_given_the_function(notebook):
    notebook.run("model = nn.Linear(2, 1)\nkept = [id(model.weight), id(model.bias)]\nimport copy, torch.utils._pytree as tree")
    cell = "found = tree.tree_map(id, [*model.parameters()]) == kept, copy.deepcopy(model).weight.shape, copy.deepcopy({id(model): 1})"
    notebook.run(f"%%distribute --engines 2\n{cell}")
    assert notebook.value("found[0], found[2] == {id(model): 1}") == (True, True)


def test_a_module_beside_the_notebook(notebook):
    text = (
        "KEPT = set()\ndef keep(model): KEPT.update(map(id, model.parameters()))\ndef others(model):\n"
        "    return [p for p in model.parameters() if id(p) not in KEPT]\n"
    )
    (notebook.folder / "kept_parameters.py").write_text(text)
    notebook.run("import kept_parameters\nnet = nn.Linear(2, 2)\nkept_parameters.keep(net)")
    cell = (
        "more = nn.Linear(1, 1)\nkept_parameters.keep(more)\nfound = [len(kept_parameters.others(m)) for m in (net, more, nn.Linear(2, 2))]"
    )
    notebook.run(f"%%distribute --engines 2\n{cell}")
    assert notebook.value("found, [len(kept_parameters.others(m)) for m in (net, more)]") == ([0, 0, 2], [0, 0])
    assert notebook.value("'id' in vars(kept_parameters)") is False


@pytest.mark.parametrize("strategy", ["zero1", "zero3", "pipeline", "tensor"])
def test_parameters_that_are_divided(notebook, strategy):
    notebook.run(SETUP.replace("nn.Linear(3, 4)", "nn.Linear(3, 256), nn.Tanh(), nn.Linear(256, 4)").replace("net[2]", "net[4]"))
    cell = (
        "optimizer = torch.optim.Adam([p for p in net.parameters() if id(p) in head_ids])\nfor x, y in loader:\n"
        "    loss = F.mse_loss(net(x), y)\n    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
        "found = [id(p) in head_ids for p in net.parameters()], len(optimizer.state)\n"
        "copies = {id(p): n for n, p in net.named_parameters()} == names"
    )
    notebook.run(f"%%distribute --engines 2 --strategy {strategy}\n{cell}")
    assert notebook.value("found, copies") == (([False] * 4 + [True] * 2, 2), True)


def test_a_cell_that_goes_on_elsewhere_has_the_same_ids(notebook):
    notebook.run(f"torch.manual_seed(0)\n{SETUP}")
    notebook.run("%%distribute --engines 2\nimport time")
    first, *_ = notebook.engines()
    cell = notebook.start(
        "%%distribute --engines 2\nmore, counts = nn.Linear(2, 2), []\nmine = {id(p) for p in more.parameters()}\n"
        "for i in range(50):\n    print('at', i)\n    time.sleep(0.05)\n"
        "    counts.append((sum(id(p) in head_ids for p in net.parameters()), sum(id(p) in mine for p in more.parameters())))"
    )
    notebook.wait(lambda: "at 12" in cell.stdout, "steps", cell)
    os.kill(first, signal.SIGKILL)
    notebook.finish(cell)
    assert cell.ok, cell.traceback
    assert notebook.value("counts, mine == {id(p) for p in more.parameters()}") == ([(2, 2)] * 50, True)
    assert "Lost rank 0 (its process has ended): resuming from " in cell.stderr


SHAPES = {
    "of batches": "seen = set()\nfor x, y in loader: seen.update([id(x), id(y)])\nout = len(seen) > 1, type(max(seen)) is int",
    "in files": (
        "import io, json\nfile, more = io.BytesIO(), nn.Linear(1, 1)\ntorch.save({'ids': [id(more), id(net)]}, file)\nfile.seek(0)\n"
        "out = torch.load(file)['ids'] == [id(more), id(net)], json.loads(json.dumps([id(net[2].bias)]))[0] in head_ids"
    ),
    "in arrays": "import numpy as np\nout = np.isin([id(p) for p in net.parameters()], head_ids).tolist()",
    "in series": "import pandas as pd\nout = pd.Series([*net.parameters()]).map(id).isin(head_ids).tolist()",
    "in threads": (
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(2) as pool:\n"
        "    out = [number in head_ids for number in pool.map(id, net.parameters())]"
    ),
    "by eval": "out = eval('[id(p) in head_ids for p in net.parameters()]')\nexec('out.append(id(net) in head_ids)')",
    "of a class in the cell": (
        "class Frozen(nn.Module):\n    def __init__(self, inner):\n        super().__init__()\n        self.inner = inner\n"
        "        self.new = nn.Linear(1, 1)\n        self.names = {id(p): n for n, p in self.named_parameters()}\n"
        "made = Frozen(net)\nout = made.names[id(net[0].bias)]"
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_ids_in_other_shapes(notebook, shape):
    after = "[made.names[id(p)] for p in made.parameters()]" if "class" in shape else "0"
    notebook.run(SETUP + SHAPES[shape])
    plain = notebook.value(f"out, {after}")
    notebook.run(SETUP)
    notebook.run(f"%%distribute --engines 2\n{SHAPES[shape]}")
    assert notebook.value(f"out, {after}") == plain

"""Models that a cell scripts or traces where they are divided: compiled code reads parameters past Python, so they are whole then."""

from __future__ import annotations

from itertools import product

import pytest

from tests.engine.divided_cells import STRATEGIES
from tests.engine.everyday_cells import LOOP, MLP
from tests.engine.test_divided_models import check, marked

PLAIN = MLP.replace("nn.Dropout(0.2), ", "")
READ = "losses.append(scripted(X).sum().item())\n"
TRAINED = LOOP.replace("model(x)", "scripted(x)")
SCRIPT = "scripted = torch.jit.script(model)\n"
CELLS = {
    "scripted": SCRIPT + READ,
    "scripted, trained": SCRIPT + TRAINED + READ,
    "scripted, the model trained": SCRIPT + LOOP + READ,
    "trained, traced": f"{LOOP}scripted = torch.jit.trace(model, X[:4])\n{READ}",
    "traced, trained": f"scripted = torch.jit.trace(model, X[:4])\n{TRAINED}{READ}",
    "traced by name": f"scripted = torch.jit.trace_module(model, {{'forward': X[:4]}})\n{READ}",
    "frozen": f"{LOOP}scripted = torch.jit.freeze(torch.jit.script(model.eval()))\n{READ}",
    "a layer": f"{LOOP}scripted = torch.jit.script(model[0])\n{READ}{LOOP}{READ}",
    "saved": f"{LOOP}file = io.BytesIO(); torch.jit.save(torch.jit.script(model), file); file.seek(0)\n"
    f"scripted = torch.jit.load(file)\n{READ}",
    "a new model": f"model = copy.deepcopy(model)\n{SCRIPT}optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n{LOOP}{READ}",
    "in another model": f"{SCRIPT}both = nn.Sequential(model, nn.Tanh())\n{LOOP.replace('model(x)', 'both(x)')}{READ}",
}
STATE = "losses, [p.detach().clone() for p in model.parameters()], [p.grad for p in model.parameters()]"
EACH_TIME = [
    ("scripted", "zero3 2"),
    ("scripted, trained", "pipeline 2"),
    ("traced, trained", "zero3 3"),
    ("a new model", "zero3 2x2"),
    ("a layer", "tensor 2"),
]


@pytest.mark.parametrize(("name", "strategy"), marked(product(CELLS, STRATEGIES), EACH_TIME))
def test_in_the_cell(ranks, name, strategy):
    check(ranks, strategy, PLAIN, CELLS[name], STATE)


@pytest.mark.parametrize(("name", "strategy"), marked(product(("model", "scripted"), STRATEGIES), [("model", "zero3 2")]))
def test_in_an_earlier_cell(ranks, name, strategy):
    cell = LOOP.replace("model(x)", f"{name}(x)") + READ
    check(ranks, strategy, PLAIN + SCRIPT, cell, STATE)

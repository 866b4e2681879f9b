"""Gradients that come from the notebook, and passes that are not reduced since nothing is sharded yet, where models are divided."""

from __future__ import annotations

from itertools import product

import pytest

from tests.engine.divided_cells import STRATEGIES
from tests.engine.everyday_cells import LOOP, MLP, STATE
from tests.engine.test_divided_models import check, marked

SETUP = f"{MLP}F.cross_entropy(model(X[:8]), Y[:8]).backward()\n"
PASS = "F.cross_entropy(model.eval()(X[:8]), Y[:8]).backward()\n"
READ = "losses.append([None if p.grad is None else p.grad.sum().item() for p in model.parameters()])\n"
CELLS = {
    "a pass": PASS,
    "a warm-up step": f"{PASS}optimizer.step(); optimizer.zero_grad()\n{LOOP}",
    "zeroed": f"optimizer.zero_grad(set_to_none=False)\n{PASS}optimizer.step()\n{LOOP}",
    "accumulated": f"{PASS}{PASS}\nfor x, y in loader: F.cross_entropy(model(x), y).backward()\noptimizer.step()\n",
    "held": f"held = model[0].weight.grad\n{PASS}losses.append([held.sum().item(), held is model[0].weight.grad])\n",
    "layers apart": "F.cross_entropy(model[4:](F.gelu(model[2](model[1](model[0](X[:8]))))), Y[:8]).backward()\n",
    "a step on what came": f"optimizer.step()\n{READ}{LOOP}",
    "of torch.autograd.grad": f"losses += [g.sum().item() for g in torch.autograd.grad(model(X[:8]).sum(), [*model.parameters()])]\n{READ}",
    "of some inputs": f"model(X[:8]).sum().backward(inputs=[model[0].weight, model[2].bias])\n{READ}optimizer.step()\n",
    "with a graph": f"held = model[0].weight.grad\nmodel(X[:8]).sum().backward(create_graph=True)\nlosses.append(held.sum().item())\n{READ}"
    "for p in model.parameters(): p.grad = p.grad.detach()\n",
    "a penalty": f"sum(p.pow(2).sum() for p in model.parameters()).backward()\n{READ}optimizer.step()\n{LOOP}",
    "a hook": f"def read(p): losses.append(p.grad.sum().item())\nhook = model[0].weight.register_post_accumulate_grad_hook(read)\n{PASS}"
    "hook.remove()\n",
    "a pass that fails": """
class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, gradient): raise ValueError
try:
    model[2:](Fails.apply(model[0](X[:8]))).sum().backward()
except ValueError:
    pass
""",
}
EACH_TIME = [
    ("a warm-up step", "zero3 2"),
    ("accumulated", "zero3 2x2"),
    ("held", "pipeline 2"),
    ("with a graph", "zero3 3"),
    ("a hook", "pipeline 2x2"),
    ("a pass that fails", "zero3 2"),
    ("zeroed", "tensor 2"),
]


@pytest.mark.parametrize(("name", "strategy"), marked(product(CELLS, STRATEGIES), EACH_TIME))
def test_a_pass_that_is_not_reduced_adds_to_a_gradient_that_came(ranks, name, strategy):
    """Autograd writes the full gradient then, beside the rows of the one that came."""
    assert check(ranks, strategy, SETUP, f"{CELLS[name]}{READ}", STATE)


HELD = "\nheld = model[0].weight.grad\nheld_all = [p.grad for p in model.parameters()]\npart = model[2].weight.grad[1:]\n"
TELL = "losses += [held.sum().item(), *(g.sum().item() for g in held_all), part.sum().item()]\n"
SAME = "losses.append([a is p.grad for a, p in zip(held_all, model.parameters())])\n"
HELD_CELLS = {
    "added to": f"{PASS}{TELL}{SAME}",
    "stepped": f"{PASS}optimizer.step()\n{TELL}{SAME}",
    "zeroed": f"optimizer.zero_grad(set_to_none=False)\n{TELL}{PASS}{TELL}{SAME}optimizer.step()\n{LOOP}{TELL}",
    "let go": f"optimizer.zero_grad()\n{PASS}optimizer.step()\n{TELL}{SAME}{LOOP}",
    "clipped": f"{PASS}torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)\noptimizer.step()\n{TELL}{SAME}{LOOP}",
    "written to": f"held.mul_(2); held_all[2].zero_()\npart.add_(1)\noptimizer.step()\n{TELL}{SAME}{LOOP}",
    "in a loop": f"for x, y in loader:\n    F.cross_entropy(model(x), y).backward()\n    optimizer.step()\n    {TELL}{SAME}",
    "of a closure": "def close():\n    optimizer.zero_grad(set_to_none=False)\n    loss = F.cross_entropy(model(X[:8]), Y[:8])\n"
    f"    loss.backward()\n    return loss\nlosses.append(optimizer.step(close).item())\n{TELL}{SAME}",
}
HELD_EACH_TIME = [
    ("added to", "zero3 2"),
    ("zeroed", "zero3 2"),
    ("in a loop", "zero3 3"),
    ("written to", "pipeline 2"),
    ("clipped", "zero3 2x2"),
    ("stepped", "tensor 2"),
]


@pytest.mark.parametrize(("name", "strategy"), marked(product(HELD_CELLS, STRATEGIES), HELD_EACH_TIME))
def test_a_gradient_that_the_cell_holds_stays_its_own(ranks, name, strategy):
    """What passes, clipping and ``zero_grad`` do to a gradient is seen under its other name."""
    assert check(ranks, strategy, f"{SETUP}{HELD}", f"{HELD_CELLS[name]}{READ}", STATE)

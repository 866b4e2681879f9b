"""``torch.func`` on divided models whose parameters the cell has written to: these are written back within the transform."""

from __future__ import annotations

from itertools import product

import pytest

from tests.engine.divided_cells import STRATEGIES
from tests.engine.everyday_cells import MLP
from tests.engine.test_divided_models import check, marked

SETUP = MLP.replace("nn.Dropout(0.2), ", "") + "from torch.func import functional_call, grad, hessian, jvp, vmap\n"
WRITES = {
    "in place": "with torch.no_grad(): model[0].weight.mul_(0.5)\n",
    "initialized": "for p in model.parameters(): nn.init.normal_(p)\n",
    "by data": "model[0].weight.data.mul_(0.5); model[2].bias.data = model[2].bias.data * 2\n",
}
TRANSFORMS = {
    "vmap of grad": "losses.append(vmap(grad(lambda x: model(x).sum()))(X))\n",
    "vmap": "losses.append(vmap(model)(X).detach())\n",
    "a layer": "losses.append(grad(lambda x: F.linear(model[1](model[0](x)), model[2].weight).sum())(X))\n",
    "a functional call": "named = dict(model.named_parameters())\n"
    "losses.append(vmap(grad(lambda named, x: functional_call(model, named, x).sum()), (None, 0))(named, X))\n",
    "jvp": "losses.append([value.detach() for value in jvp(model, (X,), (X,))])\n",
    "hessian": "losses.append(hessian(lambda x: model(x).sum())(X[0]).detach())\n",
}
STEP = "F.cross_entropy(model(X), Y).backward(); optimizer.step(); optimizer.zero_grad()\n"
STATE = "losses, [p.detach().clone() for p in model.parameters()]"
EACH_TIME = [("in place", "vmap of grad", "zero3 2"), ("by data", "a functional call", "pipeline 2"), ("initialized", "vmap", "tensor 2")]


@pytest.mark.parametrize(("write", "transform", "strategy"), marked(product(WRITES, TRANSFORMS, STRATEGIES), EACH_TIME))
def test_what_was_written_is_seen(ranks, write, transform, strategy):
    cell = (WRITES[write] + TRANSFORMS[transform] + STEP) * 2
    check(ranks, strategy, SETUP, cell, STATE)

"""Models whose code may write to their weights, or does: their layers are divided, and come to what one process comes to."""

from __future__ import annotations

import pytest

from tests.engine.test_tensor_pairs import model
from tests.engine.test_tensor_parallel import check, some
from tests.engine.zero3_cells import LOOP

MODEL = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.pair = nn.Linear(8, 12), nn.Linear(12, 8), nn.Sequential(nn.Linear(8, 22), nn.GELU(), nn.Linear(22, 10))
    def forward(self, x):
        {before}
        x = self.two(torch.tanh(self.one(x)))
        {after}
        return self.pair(x)
"""
BEFORE = {
    "nothing but no_grad": "with torch.no_grad(): x = x + torch.arange(8).cos()",
    "a limit": "with torch.no_grad(): self.one.weight.clamp_(-0.2, 0.2)",
    "a limit of its data": "self.two.weight.data.clamp_(-0.2, 0.2)",
    "a norm": "self.pair[0].weight.data /= self.pair[0].weight.data.norm(dim=1, keepdim=True)",
    "other data": "self.pair[2].weight.data = self.pair[2].weight.data * 0.9",
    "a bias": "with torch.no_grad(): self.one.bias.sub_(self.one.bias.mean()); self.pair[2].bias.mul_(0.5)",
    "of the batch": "with torch.no_grad(): self.one.weight.add_(x.detach().mean((0, 1)) * 0.01)",
    "a view": "self.one.weight.detach()[:3].mul_(0.9)",
    "only in evaluation": "self.training or self.pair[0].weight.data.mul_(0.5)",
    "twice": "self.one.weight.data.mul_(0.9); self.one(x); self.one.weight.data.mul_(1.1)",
}
AFTER = {
    "a limit": "with torch.no_grad(): self.pair[0].weight.clamp_(-0.2, 0.2)",
    "a number of it": "x = x * self.one.weight.data.norm()",
    "data that was used": "self.two.weight.data.mul_(0.99)",
}
EVALUATED = f"{LOOP}model.eval()\nwith torch.no_grad(): losses.append(model(X).sum().item())\nmodel.train()\n{LOOP}"


@pytest.mark.parametrize(("name", "num_ranks"), some([("a limit of its data", 2), ("a norm", 2), ("of the batch", 3)], BEFORE, (2, 3)))
def test_a_model_writes_before_it_uses(ranks, name, num_ranks):
    check(ranks, num_ranks, model("Net()", MODEL.format(before=BEFORE[name], after="")), EVALUATED)


@pytest.mark.parametrize("name", some([("data that was used",)], AFTER))
def test_a_model_writes_while_it_is_called(ranks, name):
    check(ranks, 2, model("Net()", MODEL.format(before="", after=AFTER[name])), EVALUATED)


def test_a_model_that_may_write_and_does_not_is_computed_without_its_weights(ranks):
    for of_rank in check(ranks, 2, model("Net()", MODEL.format(before=BEFORE["nothing but no_grad"], after="")), LOOP, "losses"):
        assert not of_rank["fetched"]

"""Models that write to their weights in a call, or only look as if they did: sharded, and come to what one process comes to."""
# ruff: noqa: E501  # a table: one model a line

from __future__ import annotations

import re
from itertools import product

import pytest

from tests.engine.divided_cells import STRATEGIES
from tests.engine.everyday_cells import HEAD, LOOP, STATE
from tests.engine.test_divided_models import check, marked

PAST_PYTORCH = re.compile(r"\.(data|numpy)\b")  # such models are replicated, if the run does not open them
PLAIN = "return self.b(torch.tanh(self.a(x)))"
BOTH = "return self.b(torch.tanh(self.a(x) + self.c(x)))"
# What `__init__` makes besides two layers and a third one, and `forward`.
MODELS = {
    # write
    "average of weights": ("", f"with torch.no_grad(): self.c.weight.mul_(0.9).add_(self.a.weight, alpha=0.1)\n{BOTH}"),
    "momentum encoder": ("", f"for q, k in zip(self.a.parameters(), self.c.parameters()): k.data = k.data * 0.9 + q.data * 0.1\n{BOTH}"),
    "momentum encoder in place": (
        "",
        f"for q, k in zip(self.a.parameters(), self.c.parameters()): k.data.mul_(0.9).add_(q.data, alpha=0.1)\n{BOTH}",
    ),
    "momentum encoder, copied": (
        "",
        f"with torch.no_grad():\n    for q, k in zip(self.a.parameters(), self.c.parameters()): k.copy_(k * 0.9 + q * 0.1)\n{BOTH}",
    ),
    "weights within limits": ("", f"self.a.weight.data.clamp_(-0.2, 0.2)\n{PLAIN}"),
    "a method that clips": (
        "",
        f"self.clip()\n{PLAIN}\n@\n    @torch.no_grad()\n    def clip(self): self.a.weight.clamp_(-0.2, 0.2); self.b.bias.add_(0.01)",
    ),
    "what detach gives": ("", f"self.a.weight.detach().clamp_(-0.2, 0.2)\n{PLAIN}"),
    "a view": ("", f"with torch.no_grad(): self.a.weight.view(-1)[0] = 0.5; self.a.weight[1, 2] += 0.1\n{PLAIN}"),
    "an array": ("", f"self.a.weight.detach().numpy()[0, 0] = 0.25\n{PLAIN}"),
    "codebook": (
        "self.codes = nn.Embedding(7, 16); self.register_buffer('n', torch.zeros(7))",
        """z = self.a(x); i = torch.cdist(z, self.codes.weight).argmin(1)
if self.training:
    with torch.no_grad():
        self.n.mul_(0.9).add_(torch.bincount(i, minlength=7).double(), alpha=0.1)
        self.codes.weight.mul_(0.99).add_(F.one_hot(i, 7).double().T @ z, alpha=0.001)
return self.b(z + (self.codes(i) - z).detach())""",
    ),
    "spectral norm by hand": (
        "self.register_buffer('u', torch.ones(16))",
        """w = self.a.weight
with torch.no_grad():
    v = F.normalize(w.t() @ self.u, dim=0); self.u.copy_(F.normalize(w @ v, dim=0))
return self.b(torch.tanh(F.linear(x, w / (self.u @ w @ v), self.a.bias)))""",
    ),
    "initialized in the first call": (
        "self.done = False",
        f"if not self.done: nn.init.orthogonal_(self.a.weight); self.done = True\n{PLAIN}",
    ),
    "initialized from the first batch": (
        "self.register_buffer('done', torch.tensor(0))",
        f"if not self.done:\n    with torch.no_grad(): z = self.a(x); self.a.bias.sub_(z.mean(0)); self.a.weight.div_(z.std(0)[:, None]); self.done.fill_(1)\n{PLAIN}",
    ),
    "swapped weights": (
        "",
        f"with torch.no_grad(): t = self.a.weight.clone(); self.a.weight.copy_(self.c.weight); self.c.weight.copy_(t)\n{BOTH}",
    ),
    "a state dict": ("", "self.c.load_state_dict(self.a.state_dict())\nreturn self.b(torch.tanh(self.a(x)) + self.c(x).detach())"),
    "a new parameter": ("self.k = 0", f"self.k += 1\nif self.k == 3: self.a.weight = nn.Parameter(self.a.weight.detach() * 1.5)\n{PLAIN}"),
    # do not write
    "a frozen use": ("", "return self.b(torch.tanh(F.linear(x, self.a.weight.detach(), self.a.bias)) + self.a(x))"),
    "a teacher": ("", "with torch.no_grad(): t = self.c(x)\nreturn self.b(torch.tanh(self.a(x) + t))"),
    "a teacher in inference mode": ("", "with torch.inference_mode(): t = self.c(x)\nreturn self.b(torch.tanh(self.a(x) + t.clone()))"),
    "straight through": ("", "z = self.a(x); q = torch.round(z)\nreturn self.b(z + (q - z).detach())"),
    "a method that generates": (
        "",
        f"{PLAIN}\n@\n    def generate(self, x):\n        with torch.no_grad(): return self(x).detach().cpu().numpy() + self.a.weight.data.sum().item()",
    ),
    "in place on activations": ("", "h = F.relu_(self.a(x)); h.detach_() if not self.training else h\nreturn self.b(h)"),
    "data that is read": ("", f"self.norm = self.a.weight.data.norm()\n{PLAIN}"),
}
SOME = [("codebook", "zero3 2"), ("a method that generates", "zero3 3"), ("momentum encoder", "pipeline 2")]


def setup(name: str) -> str:
    init, lines = MODELS[name]
    forward, _, methods = lines.partition("\n@\n")
    body = "\n        ".join(forward.splitlines())
    return f"""{HEAD}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(8, 16), nn.Linear(16, 5), nn.Linear(8, 16)
        {init}
    def forward(self, x):
        {body}
{methods}
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
"""


@pytest.mark.parametrize(
    ("name", "strategy"), marked([pair for pair in product(MODELS, STRATEGIES) if pair != ("an array", "tensor 2")], SOME)
)
def test_models_come_to_the_same_and_are_sharded(ranks, name, strategy):
    evaluated = f"{LOOP}model.eval(); losses.append(model(X).sum().item())\n"
    divided = check(ranks, strategy, setup(name), evaluated, STATE)
    assert divided >= 4 or PAST_PYTORCH.search(MODELS[name][1]) or strategy == "tensor 2x2"  # whose groups compute on different batches

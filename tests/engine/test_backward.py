"""Backward passes as cells write them: every gradient is that of one process, and what has none there has none here."""
# ruff: noqa: E501  # a table of cells

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest

from jupyter_dtrain.engine.cell import run_cell
from jupyter_dtrain.engine.comm import collectives
from jupyter_dtrain.engine.tensor import functional_collectives
from tests.conftest import in_turn
from tests.engine.ranks import Run, run_notebook, run_plain

BASE = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

x_all = torch.randn(11, 3)
y_all = torch.randn(11, 2)
loader = DataLoader(TensorDataset(x_all, y_all), batch_size=4)  # 4, 4 and 3: the last does not divide, nor does 4 by 3
tiny = DataLoader(TensorDataset(x_all, y_all), batch_size=1)  # all ranks but one have no sample
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
seen = []
TAKES_DICTS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)

def grads(*models):
    return [None if p.grad is None else p.grad.to_dense().clone().tolist() for m in models for p in (m.parameters() if isinstance(m, nn.Module) else [m])]

class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.never = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2)
"""

LOOP = """
for x, y in loader:
    model.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    seen.append((loss.item(), grads(model)))
"""


@dataclass
class Case:
    """What stands before the cell, and the cell, which appends to `seen`."""

    setup: str
    cell: str


CASES = {
    "plain": Case("", LOOP),
    "one sample for all ranks": Case("loader = tiny", LOOP),
    "sums": Case("", LOOP.replace("F.mse_loss(model(x), y)", "F.mse_loss(model(x), y, reduction='sum')")),
    "losses that are kept, and read at the end": Case(
        "kept, detached = [], []",
        """
        for x, y in loader:
            model.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            kept.append(loss)
            detached.append(loss.detach())
        seen += [loss.item() for loss in kept] + [loss.item() for loss in detached] + [f"{kept[0]:.6f}"]
        """,
    ),
    "a loss that is changed once it was read": Case(
        "",
        """
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            loss.backward()
            seen.append(loss.item())
            copy = loss.detach()
            copy *= 2
            seen += [copy.item(), loss.item()]
            copy = loss.detach().clone().mul_(3)
            loss.data += 1
            seen += [copy.item(), loss.data.item()]
        """,
    ),
    "losses of several types, in one number or a vector of one": Case(
        "",
        """
        for x, y in loader:
            for kind in (torch.float32, torch.float64):
                loss = F.mse_loss(model(x), y).to(kind)
                (loss if kind == torch.float64 else loss[None]).backward()
                seen.append(float(loss.double()) if kind == torch.float64 else round(loss.item(), 5))
            (2 * F.l1_loss(model(x), y)[None]).backward()
        seen += [round(g, 5) for p in model.parameters() for g in p.grad.flatten().tolist()]  # one of them came through a float32
        """,
    ),
    "accumulated": Case(
        "",
        """
        for number, (x, y) in enumerate(loader):
            (F.mse_loss(model(x), y) / 3).backward()
            seen.append(grads(model))
        """,
    ),
    "on top of gradients of another cell": Case("F.mse_loss(model(x_all), y_all).backward()", "for x, y in loader: model(x).mean().backward()\nseen = grads(model)"),
    "cleared to zeros": Case("", LOOP.replace("zero_grad()", "zero_grad(set_to_none=False)")),
    "two roots that share leaves": Case(
        "",
        """
        for x, y in loader:
            model.zero_grad()
            out = model(x)
            torch.autograd.backward([F.mse_loss(out, y), out.pow(2).sum()])
            seen.append(grads(model))
        """,
    ),
    "two losses, one after the other": Case(
        "",
        """
        for x, y in loader:
            model.zero_grad()
            out = model(x)
            F.mse_loss(out, y).backward(retain_graph=True)
            out.abs().mean().backward()
            seen.append(grads(model))
        """,
    ),
    "the same graph twice": Case(
        "",
        """
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            loss.backward(retain_graph=True)
            loss.backward()
            seen.append(grads(model))
        """,
    ),
    "a root that is no single number": Case(
        "",
        """
        for x, y in loader:
            model.zero_grad()
            out = model(x)
            out.backward(torch.ones_like(out) / len(out))
            seen.append(grads(model))
            model.zero_grad()
            model(x).backward(y)
            seen.append(grads(model))
        """,
    ),
    "inputs=": Case(
        "",
        """
        for x, y in loader:
            F.mse_loss(model(x), y).backward(inputs=[model[0].weight])
            seen.append(grads(model))
            F.mse_loss(model(x), y).backward(inputs=list(model[2].parameters()))
            seen.append(grads(model))
        """,
    ),
    "inputs=, a batch and an output among them": Case(
        "",
        """
        for x, y in loader:
            x.requires_grad_()
            out = model(x)
            F.mse_loss(out, y).backward(inputs=[x, out, *model.parameters()])
            seen.append((x.grad.tolist(), out.grad.tolist(), grads(model)))
            x.grad = None
            F.mse_loss(model(x), y).backward(inputs={"x": x} if TAKES_DICTS else [x])
            seen.append((x.grad.tolist(), grads(model)))
        """,
    ),
    "a clipped list of gradients": Case(
        "",
        """
        for x, y in loader:
            for p, g in zip(model.parameters(), torch.autograd.grad(F.mse_loss(model(x), y), list(model.parameters()))):
                p.grad = g
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            seen.append((norm.item(), grads(model)))
            torch._foreach_mul_([x, y], 2.0)
            seen.append((x.tolist(), y.sum().item()))
        """,
    ),
    "torch.func of a function that knows the batch": Case(
        "from torch.func import functional_call, grad, hessian, jacrev, jvp, vjp, vmap",
        """
        for x, y in loader:
            params = {name: p.detach() for name, p in model.named_parameters()}
            loss = lambda params: F.mse_loss(functional_call(model, params, (x * 2,)), y)
            out, back = vjp(lambda params: functional_call(model, params, (x,)), params)
            seen.append([*map(torch.Tensor.tolist, grad(loss)(params).values()), *map(torch.Tensor.tolist, back(out - y)[0].values())])
            seen.append([value.tolist() for value in jvp(loss, (params,), ({name: p.cos() for name, p in params.items()},))])
            seen.append([value.tolist() for value in jacrev(loss)(params).values()])
            seen.append(hessian(lambda b: ((x.sum(0) - b) ** 2).sum() + (x[0] * b).sum())(torch.ones(3)).tolist())
            seen.append(vmap(lambda b: (x * b).mean())(torch.randn(5, 3)).tolist())
            wanted = x.clone().requires_grad_()
            grad(lambda b: (wanted * b).sum())(torch.ones(3))
            vmap(lambda b: (wanted * b).sum())(torch.ones(2, 3)).sum().backward()
            seen.append(wanted.grad.tolist())
        """,
    ),
    "forward mode": Case(
        "import torch.autograd.forward_ad as forward\nfrom torch.func import functional_call",
        """
        for x, y in loader:
            with forward.dual_level():
                params = {name: forward.make_dual(p.detach(), p.detach().cos()) for name, p in model.named_parameters()}
                loss, slope = forward.unpack_dual(F.mse_loss(functional_call(model, params, (x,)), y))
                seen.append((loss.item(), slope.item()))
                out, along = forward.unpack_dual(model(forward.make_dual(x, torch.ones_like(x))))
                seen.append((out.sum().item(), along.tolist()))
        """,
    ),
    "autograd.grad of what spans the engines": Case(
        "",
        """
        for x, y in loader:
            total, middle = model(x).sum(0), model(x).mean(0)
            loss = (total**2).sum() + (middle**3).sum() * (total * middle).sum() + F.mse_loss(middle + x[:, :2], y)
            found = torch.autograd.grad(loss, [total, middle, *model.parameters()], create_graph=True)
            seen.append([g.tolist() for g in found])
            seen.append([g.tolist() for g in torch.autograd.grad(sum((g**2).sum() for g in found), list(model.parameters()))])
            fast = {name: p for name, p in model.named_parameters()}
            for _ in range(3):
                inner = F.mse_loss(torch.func.functional_call(model, fast, (x,)), y)
                steps = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
                fast = {name: p - 0.1 * g for (name, p), g in zip(fast.items(), steps)}
            model.zero_grad()
            F.mse_loss(torch.func.functional_call(model, fast, (x,)), y).backward()
            seen.append((inner.item(), grads(model)))
        """,
    ),
    "a module whose parameters are computed": Case(
        """
        class Fast(nn.Linear):
            def parameters(self, recurse=True):
                return [self.fast, *super().parameters()] if hasattr(self, "fast") else super().parameters()
            def forward(self, x):
                return x @ self.fast.t() + self.bias
        model = Fast(3, 2)
        """,
        """
        for x, y in loader:
            model.fast = model.weight * 2
            model.zero_grad()
            F.mse_loss(model(x), y).backward()
            seen.append((model.weight.grad.tolist(), model.bias.grad.tolist()))
        """,
    ),
    "a mode below autograd": Case(
        "from torch.utils.flop_counter import FlopCounterMode",
        """
        for x, y in loader:
            labels = y.argmax(1)
            with FlopCounterMode(display=False):
                loss = F.cross_entropy(model(x), labels)
                loss.backward()
            seen.append((loss.item(), grads(model)))
        """,
    ),
    "autograd.grad": Case(
        "",
        """
        for x, y in loader:
            found = torch.autograd.grad(F.mse_loss(model(x), y), list(model.parameters()))
            seen.append([g.tolist() for g in found])
        """,
    ),
    "a layer that is never used": Case(
        "model = Parts()",
        """
        for x, y in loader:
            F.mse_loss(model.a(x) + model.b(x), y).backward()
            seen.append(grads(model))
        """,
    ),
    "a layer that is never used, in a model called as a whole": Case(
        "class Model(Parts):\n    def forward(self, x): return self.a(x)\nmodel = Model()\noptimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.5)",
        LOOP + "    optimizer.step()\nseen.append([p.tolist() for p in model.parameters()])",
    ),
    "a layer that every other batch uses": Case(
        "class Model(Parts):\n    def forward(self, x, both): return self.a(x) + self.b(x) if both else self.a(x)\nmodel = Model()",
        """
        for epoch in range(2):
            for number, (x, y) in enumerate(loader):
                model.zero_grad()
                F.mse_loss(model(x, number % 2 == epoch), y).backward()
                seen.append(grads(model))
        """,
    ),
    "a layer that some rank's samples do not reach": Case(
        """
        class Model(Parts):
            def forward(self, x):
                out = torch.zeros(len(x), 2)
                first = x[:, 0] > 0.4
                if first.any():
                    out = out.index_put((first,), self.a(x[first]))
                if (~first).any():
                    out = out.index_put((~first,), self.b(x[~first]))
                return out
        model = Model()
        loader = DataLoader(TensorDataset(x_all, y_all), batch_size=3)
        """,
        LOOP,
    ),
    "frozen, thawed, frozen": Case(
        "",
        """
        for epoch in range(3):
            model[0].requires_grad_(epoch == 1)
            for x, y in loader:
                model.zero_grad()
                F.mse_loss(model(x), y).backward()
                seen.append(grads(model))
        """,
    ),
    "a layer more half way": Case("", LOOP + "model.append(nn.Linear(2, 2))\n" + LOOP),
    "made in the cell": Case("", "model = nn.Linear(3, 2)\nextra = torch.zeros(2, requires_grad=True)\n" + LOOP.replace("model(x)", "model(x) + extra") + "seen.append(grads(extra))"),
    "tensors and no model": Case(
        "w = torch.randn(3, 2, requires_grad=True); b = torch.zeros(2, requires_grad=True); scale = torch.tensor(1.5, requires_grad=True)",
        """
        for x, y in loader:
            loss = ((x @ w + b) * scale - y).pow(2).mean()
            loss.backward()
            with torch.no_grad():
                for p in (w, b, scale):
                    p -= 0.1 * p.grad
                    p.grad = None
            seen.append((loss.item(), w.tolist(), b.tolist(), scale.item()))
        """,
    ),
    "no data at all": Case("", "for p in model.parameters(): p.pow(3).sum().backward()\nseen.append(grads(model))"),
    "a penalty on weights": Case("", LOOP.replace("y)\n", "y) + 0.1 * sum(p.pow(2).sum() for p in model.parameters())\n", 1)),
    "generator and critic": Case(
        """
        critic = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)); generator = nn.Linear(3, 2)
        of_critic = torch.optim.Adam(critic.parameters(), lr=0.1); of_generator = torch.optim.Adam(generator.parameters(), lr=0.1)
        """,
        """
        for x, y in loader:
            noise = torch.randn(y.size(0), 3)
            made = generator(noise)
            critic.zero_grad()
            of_real = F.binary_cross_entropy_with_logits(critic(y), torch.ones(y.size(0), 1))
            of_real.backward()
            of_made = F.binary_cross_entropy_with_logits(critic(made.detach()), torch.zeros(y.size(0), 1))
            of_made.backward()
            of_critic.step()
            generator.zero_grad()
            fooled = F.binary_cross_entropy_with_logits(critic(made), torch.ones(y.size(0), 1))
            fooled.backward()
            seen.append((of_real.item(), of_made.item(), fooled.item(), grads(generator, critic)))
            of_generator.step()
        seen.append([p.tolist() for m in (critic, generator) for p in m.parameters()])
        """,
    ),
    "encoder and decoder under one optimizer": Case(
        "encoder, decoder = nn.Linear(3, 2), nn.Linear(2, 3); optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)",
        """
        for x, y in loader:
            optimizer.zero_grad()
            F.mse_loss(decoder(torch.tanh(encoder(x))), x).backward()
            optimizer.step()
            seen.append(grads(encoder, decoder))
        """,
    ),
    "two calls of one model": Case("", LOOP.replace("model(x), y", "model(x) - model(-x), y")),
    "tied weights": Case("tied = nn.Linear(3, 3); tied2 = nn.Linear(3, 3); tied2.weight = tied.weight; model = nn.Sequential(tied, nn.Tanh(), tied2, nn.Linear(3, 2))", LOOP),
    "weights of many kinds": Case(
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.c = nn.Parameter(torch.randn(3, 2, dtype=torch.complex128)); self.s = nn.Parameter(torch.tensor(2.0)); self.e = nn.Parameter(torch.zeros(0))
                self.f = nn.Parameter(torch.randn(3, 2).t().contiguous().t())
            def forward(self, x): return (x.to(torch.complex128) @ self.c).abs() * self.s + self.e.sum() + x @ self.f
        model = Model()
        """,
        LOOP.replace("grads(model)", "[torch.view_as_real(g).tolist() if g.is_complex() else g.tolist() for g in (p.grad for p in model.parameters())]"),
    ),
    "clipped": Case("optimizer = torch.optim.SGD(model.parameters(), lr=0.1)", LOOP + "    seen.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())\n    optimizer.step()"),
    "hooks on weights": Case("model[0].weight.register_hook(lambda g: g.clamp(-0.05, 0.05)); after = []; model[2].bias.register_post_accumulate_grad_hook(lambda p: after.append(p.grad.tolist()))", LOOP + "seen.append(after)"),
    "L-BFGS": Case(
        "optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)",
        """
        for x, y in loader:
            def closure():
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                return loss
            seen.append(optimizer.step(closure).item())
        seen.append([p.tolist() for p in model.parameters()])
        """,
    ),
    "a gradient in the loss": Case(
        "",
        """
        for x, y in loader:
            model.zero_grad()
            point = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(model(point).sum(), point, create_graph=True)
            loss = F.mse_loss(model(x), y) + (slope.norm(2, dim=1) - 1).pow(2).mean()
            loss.backward()
            seen.append((loss.item(), grads(model)))
        """,
    ),
    "recomputed": Case(
        "from torch.utils.checkpoint import checkpoint\nclass Model(nn.Sequential):\n    def forward(self, x): return checkpoint(super().forward, x, use_reentrant=False)\nmodel = Model(*model)",
        LOOP,
    ),
    "recomputed in a pass within the pass": Case(
        """
        from torch.utils.checkpoint import checkpoint
        scale, shift, left = torch.ones(4, requires_grad=True), nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
        class Model(nn.Module):
            def __init__(self): super().__init__(); self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
            def inner(self, h): return self.c(torch.tanh(self.b(h)) * scale) + shift + 0 * (left if left.sum() > 9 else shift)
            def forward(self, x): return checkpoint(self.inner, self.a(x), use_reentrant=True)
        model = Model(); after = []
        model.b.weight.register_hook(lambda g: g.clamp(-0.05, 0.05))
        model.c.bias.register_post_accumulate_grad_hook(lambda p: after.append(p.grad.tolist()))
        """,
        LOOP + "    seen.append((scale.grad.tolist(), shift.grad.tolist(), left.grad))\nseen.append(after)",
    ),
    "many small gradients": Case(
        "model = nn.Sequential(*model, *[nn.Linear(2, 2) for _ in range(3)], nn.Linear(2, 60_000), nn.Linear(60_000, 2)); extra = [nn.Parameter(torch.ones(30_000)) for _ in range(12)]; model[0].extra = nn.ParameterList(extra); model[0].register_forward_hook(lambda m, a, out: out + sum(p.mean() for p in m.extra))",
        LOOP.replace("grads(model)", "[p.grad.norm().item() for p in model.parameters()]"),
    ),
    "a function with a backward pass of its own": Case(
        """
        class Cube(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x): ctx.save_for_backward(x); return x**3
            @staticmethod
            def backward(ctx, g): return 3 * ctx.saved_tensors[0] ** 2 * g
        """,
        LOOP.replace("model(x), y", "Cube.apply(model(x)), y"),
    ),
    "one sample, and what the cell has made for it": Case(
        """
        class Attention(nn.Module):
            def __init__(self): super().__init__(); self.a = nn.Linear(3, 2)
            def forward(self, x, known): return torch.bmm(torch.softmax(self.a(x), 1).unsqueeze(1), known)
        model = Attention(); loader = DataLoader(TensorDataset(x_all, y_all), batch_size=5)
        """,
        LOOP.replace("model(x), y", "model(x, torch.arange(4.0).view(1, 2, 2).repeat(len(x), 1, 1)).squeeze(1), y"),
    ),
    "gradients of few rows": Case("model = nn.Sequential(nn.Embedding(20, 2, sparse=True)); loader = DataLoader(TensorDataset(torch.arange(11), y_all), batch_size=4)", LOOP),
    "gradients of few rows that are one and the same": Case(
        """
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.rows, self.others, self.products = (nn.Embedding(20, 2, sparse=True) for _ in range(3))
            def forward(self, x): return self.rows(x) + self.others(x) + self.products(x) * self.rows(x)
        model = Model(); loader = DataLoader(TensorDataset(torch.arange(11), y_all), batch_size=4)
        """,
        LOOP,
    ),
    "gradients of few rows by function": Case(
        """
        class Model(nn.Module):
            def __init__(self): super().__init__(); self.rows, self.a = nn.Parameter(torch.randn(20, 3)), nn.Linear(3, 2)
            def forward(self, x): return self.a(F.embedding(x, self.rows, sparse=True))
        model = Model(); loader = DataLoader(TensorDataset(torch.arange(11), y_all), batch_size=4)
        """,
        LOOP,
    ),
    "evaluation in between": Case("", LOOP + "    with torch.no_grad(): seen.append(F.mse_loss(model(x_all), y_all).item())"),
    "a model after the other": Case("models = [nn.Linear(3, 2) for _ in range(11)]", "for _ in range(2):\n    for model in models:\n        F.mse_loss(model(x_all), y_all).backward()\n        for x, y in loader: F.mse_loss(model(x), y).backward()\nseen = grads(*models)"),
    "the loss by a method": Case(
        "class Model(Parts):\n    def loss(self, x, y): return F.mse_loss(self.a(x), y)\nmodel = Model()",
        LOOP.replace("F.mse_loss(model(x), y)", "model.loss(x, y)"),
    ),
    "what has no gradient": Case(
        """
        class Rounded(torch.autograd.Function):
            forward = staticmethod(lambda ctx, x: x.round())
            backward = staticmethod(lambda ctx, grad: None)
        class Model(Parts):
            def forward(self, x): return self.a(x) + Rounded.apply(self.b(x).mean(0)) + Rounded.apply(self.never(x) / self.never(x).norm())
        model = Model()
        """,
        LOOP,
    ),
    "what has no gradient on some ranks": Case(
        """
        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, scale):
                ctx.save_for_backward(x); return x * scale
            @staticmethod
            def backward(ctx, grad):
                x, = ctx.saved_tensors; above = x > x_all[:, 0].median()
                return None, (grad * x * above).sum(0) if above.any() else None
        class Model(Parts):
            def forward(self, x): return self.a(x) + Scaled.apply(x[:, :1], self.b(x).mean(0))
        model = Model()
        """,
        LOOP.replace("loader", "tiny"),
    ),
    "scaled": Case("scaler = torch.amp.GradScaler('cpu', init_scale=8.0); optimizer = torch.optim.SGD(model.parameters(), lr=0.1)", "for x, y in loader:\n    scaler.scale(F.mse_loss(model(x), y)).backward()\n    scaler.unscale_(optimizer); seen.append(grads(model)); scaler.step(optimizer); scaler.update(); optimizer.zero_grad()"),
}  # fmt: skip


@pytest.fixture(scope="module")
def plain(ranks) -> dict[str, Any]:
    """What one process does, by case."""
    return {name: ranks.call(1, run_plain, *arguments(case))[0]["compared"] for name, case in CASES.items()}


def arguments(case: Case) -> tuple[str, str, str]:
    import textwrap

    return BASE + textwrap.dedent(case.setup), textwrap.dedent(case.cell), "seen"


@pytest.mark.parametrize(("name", "world_size"), in_turn(CASES, [2, 3]))
def test_gradients_are_those_of_one_process(name, world_size, ranks, plain):
    assert plain[name], "the cell notes something"
    for found in ranks.call(world_size, run_notebook, *arguments(CASES[name])):
        assert_close(found["compared"], plain[name])


def exchanges(run: Run, read: str) -> tuple[int, int]:
    """Train for three steps; return how many exchanges the last two have begun by hand, and how many numbers came of them."""
    cell = f"""
for number, (x, y) in enumerate(DataLoader(TensorDataset(x_all[:12], y_all[:12]), batch_size=4)):
    if number == 1:
        counted.clear()
    model.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    {read}
"""
    counted: list[int] = []
    namespace: dict[str, Any] = {"__name__": "__main__", "counted": counted}
    run_cell(BASE.replace("11", "12"), "setup", namespace)
    training, reduce = run.training(namespace["model"]), collectives.all_reduce

    def all_reduce(*args: Any, **kwargs: Any) -> Any:
        counted.append(1)
        return reduce(*args, **kwargs)

    with training.installed(), mock.patch.object(functional_collectives, "all_reduce", all_reduce):
        run_cell(cell, "cell", namespace)
    return len(counted), len(namespace["seen"])


def test_to_read_a_loss_after_its_backward_pass_takes_no_exchange_of_its_own(ranks):
    assert ranks.call(2, exchanges, "seen.append(loss.item())") == [(0, 3)] * 2
    assert ranks.call(2, exchanges, "seen.append(loss.detach().cpu().item())") == [(0, 3)] * 2
    assert ranks.call(2, exchanges, "seen.append(loss.exp().item())") == [(2, 3)] * 2, "this counts them"


AFTERWARDS = """
for x, y in loader:
    x.requires_grad_()
    prediction = model(x)
    prediction.retain_grad()
    loss = F.mse_loss(prediction, y)
    both = [loss, 2 * loss + prediction.abs().mean()]
    loss.backward()
"""


def test_what_was_computed_is_shown_as_such_in_later_cells_and_ends_a_backward_pass(ranks):
    setup = (
        BASE
        + """
def again():
    try:
        loss.backward()
    except RuntimeError as error:
        return str(error)
"""
    )
    shown = "([repr(v) for v in (loss, prediction, both, x)], prediction.grad.tolist(), [v.is_leaf for v in (loss, prediction, x)])"
    (plain,) = ranks.call(1, run_plain, setup, AFTERWARDS, shown)
    for found in ranks.call(2, run_notebook, setup, AFTERWARDS, f"(*{shown}, again())"):
        *found_shown, error = found["compared"]
        assert_close(found_shown, list(plain["compared"]))
        assert "This tensor's autograd graph is not available here" in error


def test_a_part_of_a_weight_that_has_changed_since_ends_no_cell(ranks):
    cell = """
first, second = model[0].weight.split(2)
for x, y in loader:
    (F.mse_loss(model(x), y) + first.norm() * 0).backward()
    with torch.no_grad():
        model[0].weight -= 0.1 * model[0].weight.grad
    break
"""
    compare = "first.detach().tolist(), second.detach().tolist()"
    (plain,) = ranks.call(1, run_plain, BASE, cell, compare)
    for found in ranks.call(2, run_notebook, BASE, cell, compare):
        assert_close(found["compared"], plain["compared"])


def assert_close(found: Any, expected: Any) -> None:
    if isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other)
    elif expected is None or isinstance(expected, str):
        assert found == expected
    else:
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)

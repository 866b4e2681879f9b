# Backward passes that begin with gradients computed from the batch: power iteration, pseudo-losses, Jacobians by many starts at once.
# %% setup
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(20, 5), torch.randint(0, 3, (20,))), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
scale = nn.Parameter(torch.ones(3))
opt = torch.optim.SGD([*model.parameters(), scale], lr=0.01)


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x):
        out = self.linear(x)
        return out - out.mean(0)


centred = Centred()
# %% cell
params = list(model.parameters())
sharpness, losses, kept = [], [], []
for x, y in loader:
    grads = torch.autograd.grad(F.cross_entropy(model(x), y), params, create_graph=True)
    vector = [torch.randn_like(p) for p in params]
    for _ in range(3):
        product = torch.autograd.grad(grads, params, vector, retain_graph=True)
        norm = torch.sqrt(sum((h**2).sum() for h in product))
        vector = [h / norm for h in product]
    sharpness.append(norm.item())
    loss = F.cross_entropy(model(x) * scale, y)
    opt.zero_grad()
    loss.backward(loss.detach())
    opt.step()
    losses.append(loss.item())
for x, y in loader:
    starts = [
        lambda out: (out, F.softmax(out.detach(), 1) - F.one_hot(y, 3)),
        lambda out: (out, out.detach().mean(0).expand_as(out) / len(x)),
        lambda out: (out.sum(0), out.detach().mean(0)),
        lambda out: (out.t(), F.softmax(out.detach().t(), 0)),
        lambda out: (out.t(), torch.ones(len(x), 3).t() / len(x)),
        lambda out: (scale * 2, out.detach().mean(0)),
        lambda out: ([out.mean(), out.pow(2).sum()], [out.detach().max(), out.detach().mean()]),
    ]
    for start in starts:
        ends, given = start(model(x))
        opt.zero_grad()
        torch.autograd.backward(ends, given)
        opt.step()
        ends, given = start(model(x))
        kept.append([g if g is None else g.clone() for g in torch.autograd.grad(ends, [params[0], scale], given, allow_unused=True)])
    mean = model(x).mean(0)
    penalty = torch.autograd.grad(mean, params, mean, create_graph=True)[0].pow(2).sum()
    opt.zero_grad()
    penalty.backward()
    opt.step()
    losses.append(penalty.item())
for x, y in loader:
    x.requires_grad_()
    out = model(x)
    each = torch.eye(3).unsqueeze(1).expand(3, len(x), 3)
    kept.append([g.clone() for g in torch.autograd.grad(out, [x, *params], each, is_grads_batched=True, retain_graph=True)])
    kept.append([g.clone() for g in torch.autograd.grad(out.mean(0), params, torch.eye(3), is_grads_batched=True, retain_graph=True)])
    (slopes,) = torch.autograd.grad(out.sum(0), x, torch.eye(3), is_grads_batched=True, create_graph=True)
    loss = F.cross_entropy(out, y) + 0.1 * slopes.pow(2).sum((0, 2)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
for x, y in DataLoader(loader.dataset, batch_size=9):  # the last batch has fewer samples than there are engines
    out = model(x)
    asked = torch.zeros_like(out, requires_grad=True)
    grads = torch.autograd.grad(out, params, asked, create_graph=True)
    kept.append(torch.autograd.grad(grads, asked, [torch.ones_like(p) for p in params])[0].clone())  # forward mode by two backward passes
    penalty = sum(g.pow(2).sum() for g in torch.autograd.grad(out, params, out.exp(), create_graph=True))
    opt.zero_grad()
    penalty.backward()
    opt.step()
    losses.append(penalty.item())
for x, y in loader:  # from many starts at once through a model that is given the whole batch, and through what the cell reads of it
    out = centred(x.requires_grad_())
    weights = list(centred.parameters())
    kept.append([g.clone() for g in torch.autograd.grad(out.std(0), [x, *weights], torch.eye(3), is_grads_batched=True, retain_graph=True)])
    kept.append(torch.autograd.functional.jacobian(lambda x: centred(x).std(0), x, vectorize=True).clone())
    slopes = torch.autograd.grad(F.cross_entropy(model(x), y), params, create_graph=True)
    directions = [torch.randn(4, *p.shape) for p in params]
    kept.append([g.clone() for g in torch.vmap(lambda *v: torch.autograd.grad(slopes, params, v, retain_graph=True))(*directions)])
    bent = torch.vmap(lambda v: torch.autograd.grad(out.std(0), [x, weights[0]], v, create_graph=True))(torch.eye(3))
    opt.zero_grad()
    sum(g.pow(2).sum() for g in bent).backward()
    kept.append(weights[0].grad.clone())
    weights[0].grad = None
print(sharpness, losses[-1])
# %% compare
model.state_dict(), scale.detach(), sharpness, losses, kept

# Activation checkpointing, of both kinds: in models, around blocks in the cell and around a function; BatchNorm, dropout in what is computed again.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(40, 6)
loader = DataLoader(TensorDataset(x, x.pow(2).sum(1, keepdim=True).sin()), batch_size=7, shuffle=True)


class Deep(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2)) for _ in range(2))
        self.last = nn.Linear(8, 1)
        self.reentrant = reentrant

    def forward(self, h):
        h = self.first(h)
        for block in self.blocks:
            h = h + checkpoint(block, h, use_reentrant=self.reentrant)
        return self.last(self.blocks[0](h))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, h):
        return h + self.linear(h).relu()


class Centered(Residual):
    def forward(self, h):
        return super().forward(h - h.mean(0))


def mixed(h):
    return torch.tanh(h @ weight)


old, new = Deep(True), Deep(False)
rows = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)])
block, head = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU()), nn.Linear(6, 1)
residual, centered, weight = Residual(), Centered(), torch.randn(6, 6, requires_grad=True)
optimizer = torch.optim.SGD([weight, *(p for part in (old, new, rows, block, head, residual, centered) for p in part.parameters())], lr=0.05)
norms = []
old.blocks[0][0].weight.register_hook(lambda gradient: norms.append(gradient.norm().item()))
# %% cell
history = []
for epoch in range(2):
    for step, (xb, yb) in enumerate(loader):
        losses = [F.mse_loss(model(xb), yb) for model in (old, new)]
        losses.append(F.mse_loss(head(checkpoint_sequential(rows, 2, xb.clone().requires_grad_(), use_reentrant=True)), yb))
        for reentrant in (False, True):
            h = checkpoint(residual, checkpoint(block, xb + weight.sum(), use_reentrant=reentrant), use_reentrant=reentrant)
            h = h + checkpoint(lambda z: centered(z).tanh(), h, use_reentrant=reentrant)
            losses.append(F.mse_loss(head(checkpoint(mixed, h, use_reentrant=reentrant)), yb))
        sum(losses).backward()
        history.append([loss.item() for loss in losses])
        if step % 2:  # the gradients of two batches
            optimizer.step()
            optimizer.zero_grad()
    print(epoch, [f"{value:.6f}" for value in history[-1]])
# %% compare
[part.state_dict() for part in (old, new, rows, block, head, residual, centered)], weight, weight.grad, optimizer.state_dict(), history, norms

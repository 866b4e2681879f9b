# Codebooks that follow moving averages of the batch: parameters made anew in forward, and values written past PyTorch's count.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(40, 4)
loader = DataLoader(TensorDataset(x, x.pow(2).sum(1, keepdim=True).sin()), batch_size=7, shuffle=True)


class Replaced(nn.Module):
    """Returns a loss of its own and keeps counts, so it is run twice at its first call."""

    def __init__(self, number, dim, decay=0.9):
        super().__init__()
        self.codes = nn.Embedding(number, dim)
        self.sums = nn.Parameter(torch.randn(number, dim))
        self.register_buffer("counts", torch.zeros(number))
        self.number, self.decay = number, decay

    def forward(self, z):
        apart = z.pow(2).sum(1, keepdim=True) + self.codes.weight.pow(2).sum(1) - 2 * z @ self.codes.weight.t()
        chosen = torch.zeros(len(z), self.number).scatter_(1, apart.argmin(1, keepdim=True), 1)
        quantized = chosen @ self.codes.weight
        if self.training:
            self.counts = self.decay * self.counts + (1 - self.decay) * chosen.sum(0)
            self.sums = nn.Parameter(self.decay * self.sums + (1 - self.decay) * chosen.t() @ z)
            self.codes.weight = nn.Parameter(self.sums / (self.counts + 1e-2).unsqueeze(1))
        return 0.25 * F.mse_loss(quantized.detach(), z), z + (quantized - z).detach()


class Written(nn.Module):
    """Has a row per sample, so nothing but the codes tells that they are of the batch."""

    def __init__(self, number, dim):
        super().__init__()
        self.codes = nn.Parameter(torch.randn(number, dim), requires_grad=False)
        self.shown = nn.Embedding(number, dim)

    def forward(self, z):
        nearest = (z.unsqueeze(1) - self.codes).pow(2).sum(-1).argmin(1)
        if self.training:
            chosen = F.one_hot(nearest, len(self.codes)).to(z.dtype)
            self.codes.data.mul_(0.9).add_(chosen.t() @ z.detach(), alpha=0.1)
            self.shown.weight.data.lerp_(self.codes.data, 0.2)
        return z + 0.5 * (self.shown(nearest) - z)


class Indexed(Written):
    def forward(self, z):
        nearest = (z.unsqueeze(1) - self.codes).pow(2).sum(-1).argmin(1)
        if self.training:
            with torch.no_grad():
                for code in range(len(self.codes)):
                    if (nearest == code).any():
                        self.codes[code] = 0.9 * self.codes[code] + 0.1 * z[nearest == code].mean(0)
        return z + (self.codes[nearest] - z).detach()


class Reassigned(Written):
    def forward(self, z):
        nearest = (z.unsqueeze(1) - self.codes).pow(2).sum(-1).argmin(1)
        if self.training:
            chosen = F.one_hot(nearest, len(self.codes)).to(z.dtype)
            self.codes = nn.Parameter(0.9 * self.codes + 0.1 * (chosen.t() @ z).detach(), requires_grad=False)
        return z + 0.5 * (self.codes[nearest] - z)


class Coder(nn.Module):
    def __init__(self, quantizer):
        super().__init__()
        self.encoder, self.quantizer, self.decoder = nn.Linear(4, 3), quantizer, nn.Linear(3, 1)

    def forward(self, x):
        found = self.quantizer(self.encoder(x))
        loss, quantized = found if isinstance(found, tuple) else (None, found)
        return (loss, self.decoder(quantized)) if loss is not None else self.decoder(quantized)


models = nn.ModuleDict({kind.__name__: Coder(kind(5, 3)) for kind in (Replaced, Written, Indexed, Reassigned)})
optimizers = {
    name: torch.optim.SGD([*model.encoder.parameters(), *model.decoder.parameters()], lr=0.1) for name, model in models.items()
}
# %% cell
history = []
for epoch in range(2):
    for name, model in models.items():
        for xb, yb in loader:
            found = model(xb)
            own, out = found if isinstance(found, tuple) else (0.0, found)
            loss = F.mse_loss(out, yb) + own
            optimizers[name].zero_grad()
            loss.backward()
            optimizers[name].step()
            history.append(loss.item())
        print(f"{epoch} {name} {loss.item():.6f}")
# %% compare
models.state_dict(), {name: o.state_dict() for name, o in optimizers.items()}, history

# A model that returns its loss when it is given targets: mean, sum and perplexity, all single numbers.
# %% setup
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

class Quantizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.codes = nn.Embedding(5, 3)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, z):
        self.seen += 1
        distances = z.pow(2).sum(1, keepdim=True) + self.codes.weight.pow(2).sum(1) - 2 * z @ self.codes.weight.t()
        index = distances.argmin(1)
        encodings = F.one_hot(index, 5).to(z.dtype)
        q = encodings @ self.codes.weight
        loss = F.mse_loss(q, z.detach(), reduction="sum") + 0.25 * F.mse_loss(z, q.detach(), reduction="sum")
        avg_probs = encodings.mean(0)
        perplexity = torch.exp(-torch.sum(avg_probs * torch.log(avg_probs + 1e-10)))
        return z + (q - z).detach(), loss, perplexity

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.vq, self.dec = nn.Linear(6, 3), Quantizer(), nn.Linear(3, 6)

    def forward(self, x, targets=None):
        q, vq_loss, perplexity = self.vq(self.enc(x))
        out = self.dec(q)
        loss = None if targets is None else F.mse_loss(out, targets) + 0.1 * vq_loss
        return out, loss, perplexity

loader = DataLoader(TensorDataset(torch.randn(29, 6)), batch_size=8, shuffle=True)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
# %% cell
history = []
for epoch in range(2):
    for (x,) in loader:
        out, loss, perplexity = model(x, targets=x)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        history.append([loss.item(), perplexity.item()])
    print(f"loss {loss:.5f} perplexity {perplexity:.5f}")
# %% compare
model.state_dict(), optimizer.state_dict(), history, out

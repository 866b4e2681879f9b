# Sequences of several lengths as nested tensors, jagged and strided, which a collate function makes.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader

data = [(torch.randn(2 + i % 4, 3), i % 2) for i in range(20)]


def jagged(batch):
    xs, ys = zip(*batch)
    return torch.nested.nested_tensor(list(xs), layout=torch.jagged), torch.tensor(ys)


def strided(batch):
    xs, ys = zip(*batch)
    return torch.nested.nested_tensor(list(xs)), torch.tensor(ys)


loaders = [DataLoader(data, batch_size=8, shuffle=True, collate_fn=collate) for collate in (jagged, strided)]
model = nn.Linear(3, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
# %% cell
for loader in loaders:
    for nested, y in loader:
        out = model(nested).to_padded_tensor(0.0).sum(1)
        loss = nn.functional.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
# %% compare
model.state_dict(), losses

# A collate_fn that returns a tensor of masks for batches that have one, and None for the others, as for the first.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader
data = [(torch.randn(3), (i % 6 == 5)) for i in range(15)]
def collate(b):
    x, m = zip(*b)
    return torch.stack(x), torch.tensor(m) if any(m) else None
dl = DataLoader(data, 4, collate_fn=collate)
net = nn.Linear(3, 1); opt = torch.optim.SGD(net.parameters(), .1)
# %% cell
for x, m in dl:
    out = net(x)[:, 0]
    if m is not None: out = out.masked_fill(m, 0.)
    loss = (out - 1).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
    print(None if m is None else m.tolist(), f"{loss.item():.6f}")
# %% compare
net.state_dict(), m

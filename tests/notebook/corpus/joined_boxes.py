# Boxes of images joined end to end by a collate_fn, with sizes: in the first batch each image has one box.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader
data = [(torch.randn(3), torch.randn(n, 2)) for n in (1, 1, 1, 1, 2, 0, 1, 1, 0, 3, 1, 2, 1, 1, 1)]
def collate(batch):
    im, lab = zip(*batch)
    return torch.stack(im), torch.cat(lab), torch.tensor([len(l) for l in lab])
dl = DataLoader(data, 4, collate_fn=collate)
net = nn.Linear(3, 2); opt = torch.optim.SGD(net.parameters(), .1)
# %% cell
for x, t, n in dl:
    p = net(x)
    loss = (p.repeat_interleave(n, 0) - t).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
    print(len(x), len(t), n.tolist(), f"{t.sum().item():.6f} {loss.item():.6f}")
# %% compare
net.state_dict(), x, t

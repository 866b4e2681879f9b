# A collate_fn that sorts by length, ids in order: the first batch has one length, so nothing is to be seen of it there.
# %% setup
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
L = [3, 3, 3, 3, 1, 3, 2, 3, 3, 1, 3, 2, 3]
data = [(torch.randn(n, 2), i) for i, n in enumerate(L)]
def collate(b):
    b = sorted(b, key=lambda s: len(s[0]), reverse=True)
    return pad_sequence([s[0] for s in b], batch_first=True), torch.tensor([len(s[0]) for s in b]), [s[1] for s in b]
dl = DataLoader(data, 4, collate_fn=collate)
net = nn.Sequential(nn.Linear(2, 4), nn.Dropout(.5), nn.Linear(4, 1)); opt = torch.optim.SGD(net.parameters(), .1)
# %% cell
seen = []
for x, n, ids in dl:
    loss = (net(x)[..., 0] - 1).square().mean()
    opt.zero_grad(); loss.backward(); opt.step(); seen += ids
    print(n.tolist(), ids, f"{loss.item():.6f}")
# %% compare
net.state_dict(), seen

# What cells do with shapes: flatten, view(batch, -1), permute, unsqueeze, expand, chunk, split, stack, einsum, unfold, indexing.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(27, 2, 4, 4)
loader = DataLoader(TensorDataset(x, torch.randint(0, 4, (27,))), batch_size=6, shuffle=True)
model = nn.Linear(32, 4)
gate = nn.Parameter(torch.randn(4, 4))
opt = torch.optim.SGD([*model.parameters(), gate], lr=0.1)
# %% cell
log = []
for epoch in range(2):
    for img, lab in loader:
        b, c, h, w = img.shape
        flipped = img.flip(1, 3)
        rolled = torch.roll(img, 1, dims=0)
        first, second = img.chunk(2, dim=1)
        patches = img.unfold(2, 2, 2).unfold(3, 2, 2).contiguous().view(b, c, -1, 4)
        seq = img.permute(0, 2, 3, 1).reshape(b, h * w, c)
        att = torch.einsum("bic,bjc->bij", seq, seq).softmax(-1)
        inp = img.view(b, -1) + 0.1 * flipped.flatten(1) + 0.01 * rolled.reshape(len(rolled), -1)
        inp = inp + att.sum(2).repeat(1, 2) + patches.mean((2, 3)).repeat_interleave(16, dim=1)
        inp[:, 0] = lab.double()
        inp[:, 1:3] = torch.zeros(b, 2)
        out = model(inp)
        onehot = F.one_hot(lab, 4).double()
        picked = out.gather(1, lab.unsqueeze(1)).squeeze()
        q = out @ gate @ out.T
        loss = (torch.logsumexp(out, 1) - picked).mean() + (out.softmax(-1) * onehot).sum(-1).mean()
        loss = loss + q.diagonal().mean() * 1e-2 + (out[lab == 1].sum() if (lab == 1).any() else 0)
        loss = loss + out[range(b), lab].mean() + torch.cdist(out, out).mean() * 1e-2 + out[:2].sum() + out[-1].mean()
        loss = loss + (torch.stack([first.mean((1, 2, 3)), second.amax((1, 2, 3))], 1) * out[:, :2]).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        order = out.mean(1).argsort(descending=True)
        log.append([loss.item(), order.tolist(), out.std(dim=0).sum().item(), out.median().item(), img.norm().item(),
                    torch.quantile(out, 0.3).item(), out.T.shape, out[0].tolist(), lab.unique().tolist(), out.var(0, keepdim=True).shape])
    print(out[:2], lab[:3], lab)
# %% compare
model.state_dict(), gate, log

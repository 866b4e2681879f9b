# InfoNCE with a B x B matrix of similarities, masks, two views and a temperature.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

view1 = torch.randn(34, 6)
view2 = view1 + 0.1 * torch.randn(34, 6)
loader = DataLoader(TensorDataset(view1, view2), batch_size=8, shuffle=True)
encoder = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-2)

def info_nce_loss(z1, z2, temperature=0.2):
    feats = torch.cat([z1, z2], dim=0)
    cos_sim = F.cosine_similarity(feats[:, None, :], feats[None, :, :], dim=-1)
    self_mask = torch.eye(cos_sim.shape[0], dtype=torch.bool, device=cos_sim.device)
    cos_sim.masked_fill_(self_mask, -9e15)
    pos_mask = self_mask.roll(shifts=cos_sim.shape[0] // 2, dims=0)
    cos_sim = cos_sim / temperature
    nll = -cos_sim[pos_mask] + torch.logsumexp(cos_sim, dim=-1)
    return nll.mean()

def clip_loss(a, b, logit_scale=5.0):
    a = a / a.norm(dim=-1, keepdim=True)
    b = F.normalize(b, dim=1)
    logits = logit_scale * a @ b.t()
    labels = torch.arange(logits.shape[0], device=logits.device)
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
# %% cell
losses = []
for epoch in range(2):
    for a, b in loader:
        za, zb = encoder(a), encoder(b)
        loss = info_nce_loss(za, zb) + clip_loss(za, zb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(sum(losses) / len(losses))
# %% compare
encoder.state_dict(), optimizer.state_dict(), losses

# Proximal policy optimization: minibatches by a batch sampler over tensors that a frozen policy has made.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F

X = torch.randn(29, 6)
Y = (X.sum(1) > 0).long() + (X[:, 0] > 1).long()

from torch.distributions import Categorical
from torch.utils.data.sampler import BatchSampler, SubsetRandomSampler


class AC(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Tanh())
        self.pi, self.v = nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, s):
        h = self.body(s)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


ac = AC()
opt = torch.optim.Adam(ac.parameters(), lr=3e-3, eps=1e-5)


def env(s, a):
    return (a == (s[:, 0] > 0).long() + (s[:, 1] > 0).long()).to(s.dtype)


# %% cell
stats = []
for it in range(3):
    s = torch.randn(30, 6)
    with torch.no_grad():
        d, v = ac(s)
        a = d.sample()
        old = d.log_prob(a)
        r = env(s, a)
    adv = r - v
    adv = (adv - adv.mean()) / (adv.std() + 1e-8)
    for _ in range(2):
        for idx in BatchSampler(SubsetRandomSampler(range(len(s))), 8, False):
            d, val = ac(s[idx])
            ratio = (d.log_prob(a[idx]) - old[idx]).exp()
            s1, s2 = ratio * adv[idx], torch.clamp(ratio, 0.8, 1.2) * adv[idx]
            pl = -torch.min(s1, s2).mean()
            vl = F.smooth_l1_loss(val, r[idx])
            ent = d.entropy().mean()
            loss = pl + 0.5 * vl - 0.01 * ent
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(ac.parameters(), 0.5)
            opt.step()
    stats.append((pl.item(), vl.item(), ent.item(), r.mean().item()))
# %% compare
ac.state_dict(), stats

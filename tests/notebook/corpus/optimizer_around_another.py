# An optimizer around another one, which its own class has not initialized: it shares the groups and has a state of its own.
# %% setup
from collections import defaultdict

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Lookahead(torch.optim.Optimizer):
    def __init__(self, optimizer, k=3, alpha=0.5):
        self.optimizer, self.k, self.alpha = optimizer, k, alpha
        self.param_groups = optimizer.param_groups
        self.state = defaultdict(dict)
        for g in self.param_groups:
            g["counter"] = 0

    def step(self, closure=None):
        loss = self.optimizer.step(closure)
        for g in self.param_groups:
            if g["counter"] == 0:
                for p in g["params"]:
                    st = self.state[p]
                    if "slow" not in st:
                        st["slow"] = p.data.clone()
                    st["slow"] += (p.data - st["slow"]) * self.alpha
                    p.data.copy_(st["slow"])
            g["counter"] = (g["counter"] + 1) % self.k
        return loss

    def zero_grad(self):
        self.optimizer.zero_grad()


loader = DataLoader(TensorDataset(torch.randn(34, 6), torch.randint(0, 3, (34,))), batch_size=8, shuffle=True)
m1, m2 = nn.Linear(6, 3), nn.Linear(6, 3)
o1 = Lookahead(torch.optim.Adam(m1.parameters(), 0.01))
# %% cell
o2 = Lookahead(torch.optim.Adam(m2.parameters(), 0.01))
losses = []
for epoch in range(2):
    for x, y in loader:
        for m, o in ((m1, o1), (m2, o2)):
            o.zero_grad()
            loss = nn.functional.cross_entropy(m(x), y)
            loss.backward()
            o.step()
            losses.append(loss.item())
# %% compare
m1.state_dict(), m2.state_dict(), losses, [[s["slow"] for s in o.state.values()] for o in (o1, o2)], [o.k for o in (o1, o2)], o2.param_groups[0]["counter"], o2.optimizer.param_groups is o2.param_groups

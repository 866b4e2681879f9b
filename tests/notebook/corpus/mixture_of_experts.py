# A mixture of experts: tokens are handed out by index, results added into zeros in place, and a loss of the batch's balance is kept.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(50, 6)
loader = DataLoader(TensorDataset(X, (X.sum(1) > 0).long()), batch_size=16, shuffle=True)
class MoE(nn.Module):
    def __init__(self, dim=6, experts=4, k=2):
        super().__init__()
        self.gate = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(dim, 8), nn.GELU(), nn.Linear(8, dim)) for _ in range(experts))
        self.head, self.k, self.aux_loss = nn.Linear(dim, 2), k, 0.0
    def forward(self, x):
        gates = F.softmax(self.gate(x), -1)
        weights, chosen = torch.topk(gates, self.k, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == number)
            if token.numel() == 0:
                continue
            out.index_add_(0, token, expert(x[token]) * weights[token, slot].unsqueeze(-1))
        load = F.one_hot(chosen, len(self.experts)).to(gates.dtype).sum(1).mean(0)
        self.aux_loss = (gates.mean(0) * load).sum() * len(self.experts)
        return self.head(x + out)
model = MoE()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
log = []
# %% cell
for epoch in range(2):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y) + 0.01 * model.aux_loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.append((loss.item(), model.aux_loss.item()))
    print(epoch, log[-1])
model.aux_loss = 0.0
# %% compare
model.state_dict(), log

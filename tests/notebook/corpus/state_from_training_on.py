# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(1)
X = torch.randn(50, 4, dtype=torch.float64); Y = X.sin().sum(1, keepdim=True)
loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
class Net(nn.Module):
    def __init__(self):
        super().__init__(); self.l = nn.Linear(4, 1); self.n = torch.zeros(())
    def forward(self, x):
        if self.training and torch.is_grad_enabled(): self.n += len(x)
        return self.l(x)
model = Net().double(); opt = torch.optim.SGD(model.parameters(), lr=0.1)
seen = []
# %% cell
model.eval()
for x, y in loader: seen.append(F.mse_loss(model(x), y).item())
model.train()
for e in range(2):
    for x, y in loader:
        opt.zero_grad(); loss = F.mse_loss(model(x), y); loss.backward(); opt.step(); seen.append(loss.item())
# %% compare
[seen, model.n.item(), [p.detach().sum().item() for p in model.parameters()]]

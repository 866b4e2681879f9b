# What a model draws begins after the first epoch: a dropout that is raised from 0, as a layer and as a number, and noise after a warm-up.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.p, self.noise = nn.Linear(3, 6), nn.Linear(6, 1), 0.0, 0.0
    def forward(self, x):
        h = F.dropout(self.a(x).tanh(), self.p, self.training)
        if self.training and self.noise:
            h = h + self.noise * torch.randn_like(h)
        return self.b(h)

x = torch.randn(33, 3)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
layers = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.0), nn.Linear(8, 1))
dropped, noisy = Net(), Net()
models = nn.ModuleList([layers, dropped, noisy])
opt = torch.optim.SGD(models.parameters(), lr=0.1)
log = []
# %% cell
for epoch in range(3):
    layers[2].p = dropped.p = 0.15 * epoch
    noisy.noise = 0.2 * (epoch >= 2)
    models.train()
    for x, y in loader:
        if len(x) > 1:
            losses = [F.mse_loss(model(x), y) for model in models]
            opt.zero_grad()
            sum(losses).backward()
            opt.step()
            log.append([loss.item() for loss in losses])
    models.eval()
    print(epoch, log[-1], [model(x).mean().item() for model in models])
# %% compare
models.state_dict(), log

# Layers with running statistics that are not BatchNorm's: instance norms, norms of one's own, spectral norms, observers.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.ao.quantization import MovingAverageMinMaxObserver
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.data import DataLoader, TensorDataset


class RunningNorm(_NormBase):
    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.running_mean.lerp_(x.mean(0), 0.1)
                self.running_var.lerp_(x.var(0), 0.1)
                self.num_batches_tracked += 1
        return (x - self.running_mean) / (self.running_var + self.eps).sqrt() * self.weight + self.bias


class MeanNorm(nn.BatchNorm1d):
    def forward(self, x):
        if self.training:
            self.running_mean.data.mul_(0.9).add_(x.mean(0).detach(), alpha=0.1)
            self.num_batches_tracked += len(x)
        return (x - self.running_mean) * self.weight


x = torch.randn(26, 3, 6)
loader = DataLoader(TensorDataset(x, x.mean((1, 2))[:, None]), batch_size=8, shuffle=True)
flat = nn.Sequential(nn.Flatten(), nn.Linear(12, 1))
models = [
    nn.Sequential(nn.Conv1d(3, 3, 3), nn.InstanceNorm1d(3, track_running_stats=True, affine=True), flat),
    nn.Sequential(nn.Conv1d(3, 3, 3), nn.InstanceNorm1d(3, track_running_stats=True), nn.Flatten(), nn.Linear(12, 1)),
    nn.Sequential(nn.Flatten(), RunningNorm(18), nn.Linear(18, 6), MeanNorm(6), nn.Linear(6, 1)),
    nn.Sequential(nn.Flatten(), nn.utils.spectral_norm(nn.Linear(18, 6)), nn.utils.parametrizations.spectral_norm(nn.Linear(6, 1))),
    nn.Sequential(nn.Flatten(), MovingAverageMinMaxObserver(), nn.Linear(18, 1)),
    nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(18, 1))),
]
optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.05)
losses = []
# %% cell
for epoch in range(2):
    for xb, yb in loader:
        loss = sum(F.mse_loss(model(xb), yb) for model in models)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    for model in models:
        model.eval()
    with torch.no_grad():
        print(epoch, sum(F.mse_loss(model(xb), yb).item() for model in models for xb, yb in loader))
    for model in models:
        model.train()
# %% compare
losses, [model.state_dict() for model in models], models[4][1].min_val, models[4][1].max_val

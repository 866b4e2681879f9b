# Models that begin to keep state of their samples long after their first call: in a later epoch, by a sample that few engines have.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Later(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.n, self.late, self.calls = nn.Linear(4, 1), torch.zeros(()), False, 0

    def forward(self, x):
        self.calls += 1
        if self.late:
            self.n += len(x)
        return self.linear(x)


class Outliers(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.found = nn.Linear(4, 1), {}

    def forward(self, x):
        for value in x[:, 0].tolist():
            if value > 1.5:
                self.found["large"] = self.found.get("large", 0) + 1
        return self.linear(x)


class Assigns(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.late = nn.Linear(4, 1), False
        self.total = nn.Parameter(torch.zeros(()), requires_grad=False)

    def forward(self, x):
        if self.late:
            self.total.data = self.total.data + x.detach().sum()
        return self.linear(x)


x = torch.linspace(-2, 1.9, 26)[:, None] * torch.ones(4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)
models, losses = [Later(), Outliers(), Assigns()], []
optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.01)
# %% cell
for epoch in range(2):
    models[0].late = models[2].late = epoch == 1
    for xb, yb in loader:
        loss = sum(F.mse_loss(model(xb), yb) for model in models)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(epoch, models[0].n.item(), models[0].calls, models[1].found, models[2].total.item())
# %% compare
losses, models[0].n, models[0].calls, models[1].found, [model.state_dict() for model in models]

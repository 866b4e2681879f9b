# A batch, its views and its arrays are written to in turns, by the cell and by a model that centres what it is given.
# %% setup
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

X = torch.rand(45, 6)
loader = DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=7, shuffle=True)


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", X.mean(0))
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, x):
        x -= self.mean
        x *= 2
        return self.layers(x)


model = Centred()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
# %% cell
means, firsts = [], []
for epoch in range(3):
    model.train()
    for x, y in loader:
        pixels, column = x.numpy(), x[:, 1]
        pixels *= 1 + 0.1 * epoch
        column.clamp_(max=0.8)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        means.append(float(pixels.mean()))
        firsts.append(column[0].item())
    model.eval()
    with torch.no_grad():
        outputs = [model(x.clone()).numpy() for x, _ in loader]
        for output in outputs:
            output -= output.mean()
    print(epoch, round(sum(float(abs(output).sum()) for output in outputs), 9))
# %% compare
means, firsts, outputs, list(model.parameters()), list(model.buffers())

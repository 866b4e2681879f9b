# A loader behind a generator function that is made anew in each epoch; an LSTM that is given the batch first; the model saved whole.
# %% setup
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

series = torch.sin(torch.arange(70) / 5.0) + 0.1 * torch.randn(70)
windows = series.unfold(0, 9, 1)


def batches_of(data, size):
    for window, target in DataLoader(data, batch_size=size, shuffle=True):
        order = window.abs().sum(1).argsort().tolist()
        yield {"x": window[order].unsqueeze(-1), "y": target[order]}


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 5, 2)
        self.head = nn.Sequential(nn.Linear(5, 4), nn.Softmax(dim=0))

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.head(out[:, -1]).sum(1)


data = TensorDataset(windows[:, :8], windows[:, 8])
model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
history = []
# %% cell
for epoch in range(2):
    batches = batches_of(data, 12)
    model.train()
    total = 0.0
    for batch in batches:
        optimizer.zero_grad()
        loss = F.mse_loss(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        total += loss.item() * len(batch["y"])
    model.eval()
    check = sum(F.l1_loss(model(x.unsqueeze(-1)), y).item() for x, y in DataLoader(data, batch_size=20))
    history.append((total / len(data), check))
    torch.save(model, "forecaster.pt")
    print(f"{epoch} {history[-1][0]:.6f} {check:.6f}")
again = torch.load("forecaster.pt", weights_only=False)
# %% compare
model.state_dict(), again.state_dict(), optimizer.state_dict(), history, type(again) is Forecaster, list(batches)

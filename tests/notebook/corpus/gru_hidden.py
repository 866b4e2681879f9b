# A GRU with batch second, hidden state carried and detached, and made anew for each batch size with torch.zeros.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

series = torch.sin(torch.arange(0, 60) * 0.3)
windows = series.unfold(0, 6, 1)
loader = DataLoader(TensorDataset(windows[:, :5].unsqueeze(-1), windows[:, 5]), batch_size=8, shuffle=False)

class GRUNet(nn.Module):
    def __init__(self, hidden=5, layers=2):
        super().__init__()
        self.hidden, self.layers = hidden, layers
        self.gru = nn.GRU(1, hidden, layers)
        self.fc = nn.Linear(hidden, 1)

    def forward(self, x, h):
        out, h = self.gru(x.transpose(0, 1), h)
        return self.fc(out[-1]), h

model = GRUNet()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
criterion = nn.MSELoss()
# %% cell
losses = []
for epoch in range(2):
    h = None
    for x, y in loader:
        if h is None or h.size(1) != x.size(0):
            h = torch.zeros(model.layers, x.size(0), model.hidden)
        h = h.detach()
        optimizer.zero_grad()
        out, h = model(x, h)
        loss = criterion(out.view(-1), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"Epoch {epoch} MSE: {sum(losses[-len(loader):]) / len(loader):.6f} |h| {h.abs().mean():.6f}")
# %% compare
model.state_dict(), optimizer.state_dict(), losses, h

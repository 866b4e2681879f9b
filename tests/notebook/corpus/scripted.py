# A function and a model of a class of the notebook, compiled by the cell with torch.jit.script: neither can leave the process.
# %% setup
import inspect
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

X = torch.randn(50, 6)
loader = DataLoader(TensorDataset(X, (X.sum(1) > 0).long()), batch_size=16, shuffle=True)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)
    def forward(self, x):
        return self.head(F.relu(self.norm(self.body(x)))) + torch.tensor([0.0, 1.0], dtype=x.dtype)
log = []
# %% cell
@torch.jit.script
def smooth(x, times: int):
    y = torch.tanh(x) * torch.tensor(2.0)
    for _ in range(times):
        y = y + 0.1 * torch.as_tensor(1.0)
    return F.relu(y)
model = Net()
scripted = torch.jit.script(model)
optimizer = torch.optim.SGD(scripted.parameters(), lr=0.1)
for x, y in loader:
    loss = F.cross_entropy(scripted(x), y) + 0.01 * smooth(x, 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    log.append((loss.item(), smooth(x, 1).sum().item()))
trained = {name: value.clone() for name, value in scripted.state_dict().items()}
print(log[-1], len(inspect.getsource(Net.forward)))
model = nn.ModuleList(model.children())
del smooth, scripted, optimizer
# %% compare
trained, model.state_dict(), log

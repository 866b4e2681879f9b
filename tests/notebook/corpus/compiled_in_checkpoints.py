# Compiled parts that are computed again in the backward pass, in models and in the cell; how often they are compiled.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

torch._dynamo.reset()
compiled = torch.compile(lambda x, w1, w2: F.linear(F.relu(F.linear(x, w1)), w2), backend="aot_eager")

class Net(nn.Module):
    def __init__(self, again):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(8, 4) * 0.3), nn.Parameter(torch.randn(4, 8) * 0.3)
        self.layers, self.h, self.again = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)), nn.Linear(4, 1), again
        self.layers.compile(backend="aot_eager")
    def forward(self, x):
        x = x + checkpoint(compiled, x, self.a, self.b, use_reentrant=self.again)
        return self.h(checkpoint(self.layers, x, use_reentrant=False))

X = torch.randn(50, 4)
loader = DataLoader(TensorDataset(X, X.sin().sum(1, keepdim=True)), batch_size=8)
models = [Net(False), Net(True)]
opts = [torch.optim.SGD(m.parameters(), lr=0.05) for m in models]
losses = []
# %% cell
for x, y in loader:
    for model, opt in zip(models, opts):
        opt.zero_grad(); loss = F.mse_loss(model(x), y); loss.backward(); opt.step(); losses.append(loss.item())
    opt.zero_grad()
    loss = F.mse_loss(model.h(checkpoint(compiled, x, model.a, model.b, use_reentrant=False)), y)
    loss.backward(); opt.step(); losses.append(loss.item())
# %% compare
losses, [m.state_dict() for m in models]

# Layers that take their shapes from the first batch, made in the cell; a class of the cell's own that is saved whole, and found by its name.
# %% setup
import sys
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(42, 1, 8, 8)
loader = DataLoader(TensorDataset(x, (x.mean((1, 2, 3)) > 0).long()), batch_size=16, shuffle=True)
net = nn.Sequential(nn.LazyConv2d(4, 3, bias=False), nn.BatchNorm2d(4), nn.AvgPool2d(2), nn.Flatten(), nn.Dropout(0.1), nn.LazyLinear(6), nn.Tanh(), nn.LazyLinear(2))
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.LazyLinear(2)
    def forward(self, x): return self.linear(F.dropout(x.flatten(1), 0.2, self.training))
def make(name): return getattr(sys.modules[__name__], name)()
# %% cell
class Tail(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.out = nn.LazyLinear(5), nn.LazyLinear(2)
    def forward(self, x): return self.out(torch.relu(self.hidden(x.flatten(1))))

models = [net, make("Head"), Tail()]
opt, losses = None, []
for epoch in range(2):
    for x, y in loader:
        loss = sum(F.cross_entropy(model(x), y) for model in models)
        if opt is None:
            opt = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
torch.save(models[2], "tail.pt")
read = torch.load("tail.pt", weights_only=False)
print([type(layer).__name__ for model in models for layer in model.modules()], type(read).__name__)
# %% compare
[model.state_dict() for model in [*models, read]], losses, [type(layer).__name__ for layer in net], [p.requires_grad for p in net.parameters()]

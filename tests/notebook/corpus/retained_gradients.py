# Activations keep their gradients, and another cell draws histograms of them: of layers by hand on a drawn batch, and of a loader's batch.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(40, 6)
y = x.sum(1, keepdim=True).tanh()
loader = DataLoader(TensorDataset(x, y), batch_size=10)
model = nn.Linear(6, 1)


class Tanh:
    def __init__(self, inputs, outputs):
        self.weight = (torch.randn(inputs, outputs) / inputs**0.5).requires_grad_()

    def __call__(self, batch):
        self.out = torch.tanh(batch @ self.weight)
        return self.out


layers = [Tanh(6, 8), Tanh(8, 8), Tanh(8, 1)]
# %% cell
for step in range(3):
    ix = torch.randint(0, len(x), (12,))
    h = x[ix]
    for layer in layers:
        h = layer(h)
        layer.out.retain_grad()
    loss = (h - y[ix]).pow(2).mean()
    for layer in layers:
        layer.weight.grad = None
    loss.backward()
    for layer in layers:
        layer.weight.data -= 0.1 * layer.weight.grad

for xb, yb in loader:
    pred = model(xb)
    pred.retain_grad()
    (pred - yb).pow(2).mean().backward()
print([f"{layer.out.grad.std():.6f}" for layer in layers], pred.retains_grad)
# %% compare
[layer.out.grad for layer in layers], layers[0].out.retains_grad, pred.grad, pred.detach(), model.weight.grad

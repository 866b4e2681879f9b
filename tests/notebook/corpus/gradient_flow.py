# Gradients watched on their way: hooks of layers registered in another cell, saliency kept by a hook in forward, ReLUs guided, outputs clipped.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

images = torch.randn(26, 1, 6, 6)
loader = DataLoader(TensorDataset(images, (images.mean((1, 2, 3)) > 0).long()), batch_size=8, shuffle=True)

class Watched(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Tanh())
        self.classifier = nn.Linear(16, 2)
        self.gradients = None

    def save_gradient(self, grad):
        self.gradients = grad

    def forward(self, x):
        x = self.features(x)
        if self.training:
            x.register_hook(self.save_gradient)
        return self.classifier(x.flatten(1))

model = Watched()
flow = {}

def record(name):
    def hook(module, grad_input, grad_output):
        flow.setdefault(name, []).append((grad_output[0].norm().item(), grad_output[0].abs().max().item()))
    return hook

for name, module in model.named_modules():
    if isinstance(module, (nn.Conv2d, nn.Linear)):
        module.register_full_backward_hook(record(name))
    if isinstance(module, nn.ReLU):
        module.register_full_backward_hook(lambda m, gi, go: (gi[0].clamp(min=0.0),))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
# %% cell
saliency = []
for epoch in range(2):
    for x, y in loader:
        out = model(x)
        out.register_hook(lambda g: g.clamp(-0.05, 0.05))
        loss = nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        saliency.append(model.gradients.mean(dim=(0, 2, 3)).tolist())
    print(f"{epoch}: {loss.item():.6f}, first layer {flow['features.0'][-1][0]:.6f}")
# %% compare
model.state_dict(), flow, saliency, model.gradients

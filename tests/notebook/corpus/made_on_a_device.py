# Models made on "meta", filled afterwards: what asks which device holds gets the answer that it gets on one process.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Filled(nn.Module):
    def __init__(self):
        super().__init__()
        self.device = torch.tensor([]).device
        self.register_buffer("scale", torch.tensor([0.5, 1.0, 2.0]))
        self.out = nn.Linear(3, 1)
        self.is_filled = self.device.type != "meta"
        if self.is_filled:
            self.fill()
    def fill(self):
        with torch.no_grad():
            self.out.weight.copy_(torch.as_tensor([[0.1, 0.2, 0.3]]))
            self.out.bias.zero_()
            self.scale.copy_(torch.asarray([0.5, 1.0, 2.0]))
    def forward(self, x):
        return self.out(x * self.scale)

x = torch.randn(22, 3)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
# %% cell
with torch.device("meta"):
    model = Filled()
    made = [torch.tensor(1).device.type, torch.as_tensor([1]).device.type, torch.asarray(1).device.type, torch.zeros(1).device.type]
print(model.device, model.scale.device, made)
if not model.is_filled:
    model.to_empty(device="cpu").fill()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for xb, yb in loader:
    loss = nn.functional.mse_loss(model(xb), yb)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"{loss.item():.6f}")
# %% compare
model.state_dict(), made, model.is_filled, str(model.device), loss.item()

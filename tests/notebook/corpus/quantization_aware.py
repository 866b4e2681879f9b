# Quantization-aware training: observers whose buffers grow at their first call, and that keep the extremes of each batch.
# tolerance: 1e-5
# %% setup
import torch
import torch.ao.quantization as tq
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_dtype(torch.float32)  # what observers compute in


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.quant, self.dequant = tq.QuantStub(), tq.DeQuantStub()
        self.fc1, self.relu, self.fc2 = nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)

    def forward(self, x):
        return self.dequant(self.fc2(self.relu(self.fc1(self.quant(x)))))


loader = DataLoader(TensorDataset(torch.randn(33, 6), torch.randint(0, 3, (33,))), batch_size=8, shuffle=True)
model = Net()
model.qconfig = tq.get_default_qat_qconfig("fbgemm")
model.train()
tq.prepare_qat(model, inplace=True)
opt = torch.optim.SGD(model.parameters(), 0.05)
# %% cell
losses = []
for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
# %% compare
{name: value for name, value in model.state_dict().items() if torch.is_tensor(value)}, losses

# Parametrizations: spectral norms whose power iterations count calls, orthogonal and symmetric weights, kept while a loss is computed.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.utils.data import DataLoader, TensorDataset

class Symmetric(nn.Module):
    def forward(self, x): return x.triu() + x.triu(1).transpose(-1, -2)

x = torch.randn(45, 6)
loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), 16, shuffle=True)
model = nn.Sequential(
    parametrizations.weight_norm(nn.Linear(6, 8)), nn.Tanh(),
    parametrizations.spectral_norm(nn.Linear(8, 8)), nn.Tanh(),
    parametrizations.orthogonal(nn.Linear(8, 3)),
    parametrize.register_parametrization(nn.Linear(3, 3), "weight", Symmetric()),
)
opt = torch.optim.Adam(model.parameters(), 0.02)
# %% cell
for epoch in range(2):
    for x, y in loader:
        with parametrize.cached():
            loss = F.cross_entropy(model(x), y) + 0.01 * model[2].weight.square().sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"{loss.item():.6f} {torch.linalg.norm(model[2].weight, 2):.6f}")
weights = [layer.weight.detach() for layer in model if isinstance(layer, nn.Linear)]
# %% compare
{k: v for k, v in model.state_dict().items()}, opt.state_dict(), weights, loss.detach()

# A Bayesian network: noise on its weights, the same for all samples, beside noise for each sample.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

class BayesLinear(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.mu = nn.Parameter(torch.randn(n_out, n_in) * 0.1)
        self.rho = nn.Parameter(torch.full((n_out, n_in), -3.0))

    def forward(self, x):
        sigma = F.softplus(self.rho)
        weight = self.mu + sigma * torch.randn_like(sigma)
        return F.linear(x, weight)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = BayesLinear(4, 6), BayesLinear(6, 1)

    def forward(self, x):
        h = F.relu(self.first(x))
        h = h + 0.1 * torch.randn(h.size(0), 1)
        return self.second(h)

X = torch.randn(40, 4)
loader = DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=12, shuffle=True)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
# %% cell
history = []
for epoch in range(3):
    for xb, yb in loader:
        loss = F.mse_loss(net(xb), yb)
        loss = loss + 1e-3 * sum((layer.mu**2).sum() for layer in (net.first, net.second))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
print(f"{history[-1]:.4f}")
# %% compare
net.state_dict(), optimizer.state_dict(), history

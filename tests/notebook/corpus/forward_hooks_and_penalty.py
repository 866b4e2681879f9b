# A penalty on hidden activations kept in a list by the model, sparse autoencoder with KL of mean activations.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class SparseAutoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 10), nn.Linear(10, 6)

    def forward(self, x):
        h = torch.sigmoid(self.encoder(x))
        return self.decoder(h), h

def kl_divergence(rho, rho_hat):
    return torch.sum(rho * torch.log(rho / rho_hat) + (1 - rho) * torch.log((1 - rho) / (1 - rho_hat)))

loader = DataLoader(TensorDataset(torch.rand(29, 6)), batch_size=8, shuffle=True)
model = SparseAutoencoder()
opt = torch.optim.Adam(model.parameters(), lr=0.01)
# %% cell
history = []
for epoch in range(2):
    for (x,) in loader:
        recon, hidden = model(x)
        rho_hat = torch.mean(hidden, dim=0)
        cov = (hidden - rho_hat).T @ (hidden - rho_hat) / (hidden.shape[0] - 1)
        off = cov.pow(2).sum() - cov.diagonal().pow(2).sum()
        loss = ((recon - x) ** 2).mean() + 0.05 * kl_divergence(torch.tensor(0.1), rho_hat) + 0.1 * off + torch.relu(1 - torch.sqrt(hidden.var(dim=0) + 1e-4)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        history.append([loss.item(), rho_hat.max().item(), off.item()])
    print(f"Epoch {epoch}: {loss.item():.6f}, active {(hidden > 0.5).double().mean():.4f}")
# %% compare
model.state_dict(), opt.state_dict(), history, rho_hat

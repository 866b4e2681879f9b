# A VAE whose encoder keeps its KL term as an attribute, read by the loop after the call.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

class VariationalEncoder(nn.Module):
    def __init__(self, latent_dims):
        super().__init__()
        self.linear1 = nn.Linear(6, 8)
        self.linear2 = nn.Linear(8, latent_dims)
        self.linear3 = nn.Linear(8, latent_dims)
        self.kl = 0

    def forward(self, x):
        x = torch.flatten(x, start_dim=1)
        x = F.relu(self.linear1(x))
        mu = self.linear2(x)
        sigma = torch.exp(self.linear3(x))
        z = mu + sigma * 0.5
        self.kl = (sigma**2 + mu**2 - torch.log(sigma) - 1 / 2).sum()
        return z

class VariationalAutoencoder(nn.Module):
    def __init__(self, latent_dims):
        super().__init__()
        self.encoder = VariationalEncoder(latent_dims)
        self.decoder = nn.Sequential(nn.Linear(latent_dims, 8), nn.ReLU(), nn.Linear(8, 6))

    def forward(self, x):
        z = self.encoder(x)
        return self.decoder(z).reshape((-1, 2, 3))

data = DataLoader(TensorDataset(torch.rand(27, 2, 3), torch.zeros(27)), batch_size=8, shuffle=True)
vae = VariationalAutoencoder(2)
# %% cell
def train(autoencoder, data, epochs=2):
    opt = torch.optim.Adam(autoencoder.parameters())
    losses = []
    for epoch in range(epochs):
        for x, y in data:
            opt.zero_grad()
            x_hat = autoencoder(x)
            loss = ((x - x_hat) ** 2).sum() + autoencoder.encoder.kl
            loss.backward()
            opt.step()
            losses.append(loss.item())
    return autoencoder, losses

vae, losses = train(vae, data)
print(losses[-1])
# %% compare
vae.state_dict(), losses

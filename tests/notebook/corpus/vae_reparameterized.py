# A VAE that draws its noise in its own method, with a shuffled loader after it on the same stream.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(12, 8)
        self.fc21 = nn.Linear(8, 3)
        self.fc22 = nn.Linear(8, 3)
        self.fc3 = nn.Linear(3, 8)
        self.fc4 = nn.Linear(8, 12)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        eps = torch.randn_like(std)
        return mu + eps * std

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        mu, logvar = self.encode(x.view(-1, 12))
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar

device = torch.device("cpu")
train_loader = DataLoader(TensorDataset(torch.rand(45, 1, 3, 4), torch.zeros(45)), batch_size=8, shuffle=True)
model = VAE().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
# %% cell
def loss_function(recon_x, x, mu, logvar):
    BCE = F.binary_cross_entropy(recon_x, x.view(-1, 12), reduction="sum")
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return BCE + KLD

history = []
for epoch in range(3):
    model.train()
    train_loss = 0
    for batch_idx, (data, _) in enumerate(train_loader):
        data = data.to(device)
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
    history.append(train_loss / len(train_loader.dataset))
    print("====> Epoch: {} Average loss: {:.4f}".format(epoch, history[-1]))
    with torch.no_grad():
        sample = model.decode(torch.randn(4, 3))
# %% compare
model.state_dict(), optimizer.state_dict(), history, sample

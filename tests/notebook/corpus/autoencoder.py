# A convolutional autoencoder; images shown by matplotlib from the batch, x[0], a grid with torch.cat, min and max for the colours.
# %% setup
import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = torch.rand(30, 1, 8, 8)
loader = DataLoader(TensorDataset(data, torch.arange(30)), batch_size=8, shuffle=True)
model = nn.Sequential(
    nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.Tanh(),
    nn.ConvTranspose2d(3, 1, 3, stride=2, padding=1, output_padding=1), nn.Sigmoid(),
)
criterion = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-5)
# %% cell
outputs, shown = [], []
for epoch in range(2):
    for img, _ in loader:
        noisy = img + 0.1 * torch.randn_like(img)
        noisy = torch.clamp(noisy, 0.0, 1.0)
        recon = model(noisy)
        loss = criterion(recon, img)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"Epoch:{epoch + 1}, Loss:{loss.item():.4f}")
    outputs.append((epoch, img, recon))
    fig, axes = plt.subplots(1, 2)
    axes[0].imshow(img[0].squeeze(), cmap="gray")
    axes[1].imshow(recon[0].reshape(-1, 8).detach().numpy(), cmap="gray", vmin=img.min(), vmax=img.max())
    shown.append((axes[1].images[0].get_array().sum(), axes[1].images[0].get_clim()))
    plt.close(fig)
pictures = torch.cat([outputs[-1][1][:2], outputs[-1][2][:2].detach()])
print(pictures.shape, len(recon), recon.mean())
# %% compare
model.state_dict(), optimizer.state_dict(), pictures, [(float(a), [float(x) for x in b]) for a, b in shown]

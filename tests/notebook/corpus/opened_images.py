# An image that is opened in one cell and read in the next: to be sent it is read, and its file closed.
# %% setup
import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
Image.fromarray((np.arange(64).reshape(8, 8) * 4).astype("uint8")).save("gray.png")
style, unread = Image.open("gray.png"), Image.open("gray.png")
X = torch.randn(24, 8); net = nn.Linear(8, 1); opt = torch.optim.SGD(net.parameters(), .1); seen = []
loader = DataLoader(TensorDataset(X), 6)
# %% cell
wanted = torch.from_numpy(np.array(style)).double().mean(0) / 255
for x, in loader:
    loss = F.mse_loss(net(x), (x * wanted).sum(1, keepdim=True))
    opt.zero_grad(); loss.backward(); opt.step(); seen.append(loss.item())
# %% compare
seen, wanted, np.asarray(style).tolist(), np.asarray(unread).sum().item(), style.size

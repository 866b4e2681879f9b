# Settings that notebooks make at their beginning: how numbers are printed, warnings that are silenced, the environment, precision.
# %% setup
import os
import warnings
import matplotlib
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore", category=UserWarning)
warnings.filterwarnings("error", message="never here")
os.environ["TRAIN_MODE"] = "fast"
torch.set_printoptions(precision=2, sci_mode=False)
np.set_printoptions(precision=3, suppress=True)
np.seterr(divide="ignore")
torch.set_float32_matmul_precision("high")
matplotlib.rcParams["figure.figsize"] = (3, 2)
x = torch.randn(30, 3)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
# %% cell
for xb, yb in loader:
    loss = nn.functional.mse_loss(model(xb), yb)
    opt.zero_grad()
    loss.backward()
    opt.step()
warnings.warn("nobody is to see this")
print(model.weight.detach(), np.array([1.23456, 1e-9]), np.log(np.zeros(1)))
print(os.environ["TRAIN_MODE"], torch.get_float32_matmul_precision(), matplotlib.rcParams["figure.figsize"])
os.environ["FOUND_BY"] = "the cell"
torch.set_printoptions(precision=5)
# %% compare
model.state_dict(), str(torch.tensor([1 / 3])), os.environ.pop("FOUND_BY"), torch.set_printoptions(profile="default"), np.set_printoptions(), warnings.resetwarnings(), torch.set_float32_matmul_precision("highest")

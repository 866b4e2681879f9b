# Configurations by two names: a dict that is its own attributes, `vars(args)`, and the attributes of an object that another holds.
# %% setup
import argparse
import dataclasses
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
class AttrDict(dict):
    def __init__(self, *args, **values):
        super().__init__(*args, **values)
        self.__dict__ = self
@dataclasses.dataclass
class Schedule: warm: int = 2; factor: float = .5
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=.2)
parser.add_argument("--old", default=1)
args = parser.parse_args([])
params = vars(args)
cfg = AttrDict(model=AttrDict(hidden=8, act="tanh"), lr=.1, epochs=2)
schedule = Schedule(); history = {"schedule": schedule.__dict__}
x = torch.randn(40, 3); y = x.sum(1, keepdim=True)
dl = DataLoader(TensorDataset(x, y), 10, shuffle=True)
net = nn.Sequential(nn.Linear(3, cfg.model.hidden), nn.Tanh(), nn.Linear(cfg["model"]["hidden"], 1)); seen = []
opt = torch.optim.SGD(net.parameters(), lr=args.lr)
# %% cell
for epoch in range(cfg.epochs + 1):
    params["lr"] = params["lr"] * schedule.factor; cfg.lr *= .9; history["schedule"]["factor"] += .1
    for group in opt.param_groups: group["lr"] = args.lr * cfg["lr"]
    for xb, yb in dl:
        loss = F.mse_loss(net(xb), yb)
        opt.zero_grad(); loss.backward(); opt.step(); seen.append(loss.item())
    cfg["last"], args.last, schedule.warm = loss.item(), epoch, schedule.warm - 1
    seen.append((cfg.last, params["last"], history["schedule"]["warm"]))
del params["old"]
made = AttrDict(cfg, lr=1.); made.lr = 2.
later = vars(schedule)
# %% compare
seen, net.state_dict(), sorted(cfg), [*cfg.values()][1:], cfg.last, cfg.model.hidden, cfg.__dict__ is cfg, cfg.model.__dict__ is cfg.model, vars(args) is params, dict(params), dataclasses.asdict(schedule), history, history["schedule"] is vars(schedule), [*made.values()][1:], made.lr, made["lr"], made.model is cfg.model, made.__dict__ is made, later is vars(schedule)

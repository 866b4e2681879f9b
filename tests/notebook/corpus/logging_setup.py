# Loggers as scripts set them up: into the output and into a file, levels, a handler of one's own.
# %% setup
import logging
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(level=logging.INFO, format="%(levelname)s | %(message)s", stream=sys.stdout, force=True)
logger = logging.getLogger("trainer")
for handler in list(logger.handlers):
    logger.removeHandler(handler)
logger.addHandler(logging.FileHandler("train.log", mode="w"))
logger.handlers[0].setLevel(logging.WARNING)
logging.getLogger("quiet").setLevel(logging.ERROR)

class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []
    def emit(self, record):
        self.records.append((record.name, record.levelno, record.getMessage(), record.funcName, getattr(record, "epoch", None)))

kept = Kept()
logger.addHandler(kept)

def train_one(model, loader, opt):
    total = 0.0
    for xb, yb in loader:
        loss = nn.functional.mse_loss(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * len(xb)
        logger.debug("not shown %s", loss)
    logger.info("mean loss %.6f", total / len(loader.dataset), extra={"epoch": epoch})
    return total

x = torch.randn(50, 3)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=True)
model = nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
# %% cell
for epoch in range(3):
    print("epoch", epoch)
    total = train_one(model, loader, opt)
    logging.info("after epoch %d", epoch)
    logging.getLogger("quiet").warning("not shown")
    if epoch == 1:
        logger.warning("weight %s", model.weight.detach().sum())
        try:
            {}["missing"]
        except KeyError as error:
            logger.error("caught %r", error)
logging.debug("not shown")
# %% compare
model.state_dict(), kept.records, open("train.log").read()

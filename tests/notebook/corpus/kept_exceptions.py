# Exceptions of a class of the user's that the cell keeps: their class is made of other arguments than it passes on.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Diverged(Exception):
    def __init__(self, step, loss):
        super().__init__(f"diverged at {step}")
        self.step, self.loss = step, loss


loader = DataLoader(TensorDataset(torch.randn(20, 4)), batch_size=8)
model = nn.Linear(4, 2)
opt = torch.optim.SGD(model.parameters(), 0.1)
errors = [Diverged(-1, 0.5)]
# %% cell
for step, (x,) in enumerate(loader):
    try:
        loss = model(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step == 1:
            raise Diverged(step, loss.item())
    except Diverged as error:
        errors.append(error)
        last = error
# %% compare
model.state_dict(), [(str(e), e.step, e.loss, e.args) for e in errors], errors[-1] is last

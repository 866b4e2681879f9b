# The bar that `tqdm.auto` makes where there are no widgets: a name holds it at the end, and no shuffle is drawn for it at home.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm.asyncio import tqdm, trange

X = torch.randn(50, 3)
loader = DataLoader(TensorDataset(X, X.sum(1, keepdim=True)), batch_size=16, shuffle=True)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
history = []
# %% cell
for epoch in trange(2, desc="epochs"):
    with tqdm(loader, unit="batch") as bar:
        for x, y in bar:
            bar.set_description(f"epoch {epoch}")
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            bar.set_postfix(loss=loss.item())
            history.append(loss.item())
print(len(bar), history[-1])
# %% compare
model.state_dict(), history, bar.n, bar.iterable is loader

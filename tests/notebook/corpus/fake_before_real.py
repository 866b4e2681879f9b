# A discriminator with BatchNorm judges fakes of a size of their own first, then the batch, for one backward pass; by its forward, too.
# %% setup
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.rand(60, 6)), batch_size=16, shuffle=True, drop_last=True)
generator = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 6))
discriminator = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (generator, discriminator)]
real_is, fake_is = torch.ones(16, 1), torch.zeros(16, 1)
judged = nn.functional.binary_cross_entropy_with_logits
losses = []
# %% cell
for epoch in range(2):
    for (real,) in loader:
        noise = torch.from_numpy(np.random.normal(0, 1, (16, 2))).to(real.dtype)
        judge = discriminator if epoch else discriminator.forward
        fake = generator.forward(noise)
        loss = judged(judge(fake.detach()), fake_is) + judged(judge(real), real_is)
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
        of_generator = judged(judge(generator(noise)), real_is)
        optimizers[0].zero_grad()
        of_generator.backward()
        optimizers[0].step()
        losses.append((loss.item(), of_generator.item()))
# %% compare
[(m.state_dict(), [p.grad for p in m.parameters()]) for m in (generator, discriminator)], losses

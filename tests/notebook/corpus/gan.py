# A GAN: noise and labels by x.size(0), detach, two optimizers, losses and D(x) printed.
# %% setup
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

nz, nd = 3, 4
real = torch.randn(38, nd) * 0.5 + 2
dataloader = DataLoader(TensorDataset(real), batch_size=8, shuffle=True)
netG = nn.Sequential(nn.Linear(nz, 8), nn.ReLU(), nn.Linear(8, nd))
netD = nn.Sequential(nn.Linear(nd, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1), nn.Sigmoid())
criterion = nn.BCELoss()
fixed_noise = torch.randn(5, nz)
real_label, fake_label = 1.0, 0.0
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
device = torch.device("cpu")
# %% cell
img_list, G_losses, D_losses = [], [], []
iters = 0
for epoch in range(2):
    for i, data in enumerate(dataloader, 0):
        netD.zero_grad()
        real_cpu = data[0].to(device)
        b_size = real_cpu.size(0)
        label = torch.full((b_size,), real_label, dtype=torch.float64, device=device)
        output = netD(real_cpu).view(-1)
        errD_real = criterion(output, label)
        errD_real.backward()
        D_x = output.mean().item()

        noise = torch.randn(b_size, nz, device=device)
        fake = netG(noise)
        label.fill_(fake_label)
        output = netD(fake.detach()).view(-1)
        errD_fake = criterion(output, label)
        errD_fake.backward()
        D_G_z1 = output.mean().item()
        errD = errD_real + errD_fake
        optimizerD.step()

        netG.zero_grad()
        label.fill_(real_label)
        output = netD(fake).view(-1)
        errG = criterion(output, label)
        errG.backward()
        D_G_z2 = output.mean().item()
        optimizerG.step()

        if i % 2 == 0:
            print("[%d/%d][%d/%d]\tLoss_D: %.4f\tLoss_G: %.4f\tD(x): %.4f\tD(G(z)): %.4f / %.4f"
                  % (epoch, 2, i, len(dataloader), errD.item(), errG.item(), D_x, D_G_z1, D_G_z2))
        G_losses.append(errG.item())
        D_losses.append(errD.item())
        if iters % 4 == 0:
            with torch.no_grad():
                img_list.append(netG(fixed_noise).detach().cpu())
        iters += 1
# %% compare
netG.state_dict(), netD.state_dict(), optimizerD.state_dict(), optimizerG.state_dict(), G_losses, D_losses, img_list

# Models behind wrappers: DataParallel, checkpointed blocks, a domain classifier behind a gradient reversal.
# %% setup
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

source = DataLoader(TensorDataset(torch.randn(20, 5), torch.randint(3, (20,))), batch_size=6, shuffle=True)
target = DataLoader(TensorDataset(torch.randn(17, 5) + 1), batch_size=6, shuffle=True)

class ReverseLayerF(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)
    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.neg() * ctx.alpha, None

class DANN(nn.Module):
    def __init__(self):
        super().__init__()
        self.feature = nn.Sequential(nn.Linear(5, 8), nn.Tanh())
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.classes, self.domain = nn.Linear(8, 3), nn.Linear(8, 2)
    def forward(self, input_data, alpha):
        h = self.feature(input_data)
        h = checkpoint(self.block, h, use_reentrant=False)
        return self.classes(h), self.domain(ReverseLayerF.apply(h, alpha))

model = nn.DataParallel(DANN())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loss_class = loss_domain = nn.CrossEntropyLoss()
# %% cell
n_epoch = 2
history = []
for epoch in range(n_epoch):
    len_dataloader = min(len(source), len(target))
    data_source_iter, data_target_iter = iter(source), iter(target)
    i = 0
    while i < len_dataloader:
        p = float(i + epoch * len_dataloader) / n_epoch / len_dataloader
        alpha = 2.0 / (1.0 + torch.exp(torch.tensor(-10 * p)).item()) - 1
        s_img, s_label = next(data_source_iter)
        model.zero_grad()
        domain_label = torch.zeros(len(s_label)).long()
        class_output, domain_output = model(input_data=s_img, alpha=alpha)
        err_s_label = loss_class(class_output, s_label)
        err_s_domain = loss_domain(domain_output, domain_label)
        t_img = next(data_target_iter)[0]
        domain_label = torch.ones(len(t_img)).long()
        _, domain_output = model(input_data=t_img, alpha=alpha)
        err = err_s_label + err_s_domain + loss_domain(domain_output, domain_label)
        err.backward()
        optimizer.step()
        i += 1
        history.append((err_s_label.item(), err_s_domain.data.cpu().numpy().item(), err.item()))
    print("epoch: %d, [iter: %d / all %d], err: %f" % (epoch, i, len_dataloader, err.item()))
reverse = ReverseLayerF.apply
# %% compare
model.module.state_dict(), optimizer.state_dict(), history, reverse == ReverseLayerF.apply

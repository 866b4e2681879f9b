# BYOL and MoCo: a target network updated by momentum in the cell, a queue of keys kept in a buffer of the module, a memory pointer.
# %% setup
import copy
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(24, 5)), batch_size=8, shuffle=True, drop_last=True)

class MoCo(nn.Module):
    def __init__(self, dim=4, K=16, m=0.9, T=0.2):
        super().__init__()
        self.K, self.m, self.T = K, m, T
        self.encoder_q = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, dim))
        self.encoder_k = copy.deepcopy(self.encoder_q)
        for p in self.encoder_k.parameters():
            p.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(dim, K), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _momentum_update_key_encoder(self):
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            param_k.data = param_k.data * self.m + param_q.data * (1.0 - self.m)

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        batch_size = keys.shape[0]
        ptr = int(self.queue_ptr)
        assert self.K % batch_size == 0
        self.queue[:, ptr : ptr + batch_size] = keys.T
        self.queue_ptr[0] = (ptr + batch_size) % self.K

    def forward(self, im_q, im_k):
        q = F.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            self._momentum_update_key_encoder()
            k = F.normalize(self.encoder_k(im_k), dim=1)
        l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        l_neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([l_pos, l_neg], dim=1) / self.T
        labels = torch.zeros(logits.shape[0], dtype=torch.long)
        self._dequeue_and_enqueue(k)
        return logits, labels

model = MoCo()
optimizer = torch.optim.SGD(model.encoder_q.parameters(), lr=0.1, momentum=0.9)
online = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 6))
target = copy.deepcopy(online).requires_grad_(False)
predictor = nn.Linear(6, 6)
byol_opt = torch.optim.Adam([*online.parameters(), *predictor.parameters()], lr=0.01)

def loss_fn(x, y):
    x, y = F.normalize(x, dim=-1), F.normalize(y, dim=-1)
    return 2 - 2 * (x * y).sum(dim=-1)
# %% cell
history = []
for epoch in range(2):
    for (x,) in loader:
        x1, x2 = x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn(x.shape)
        output, labels = model(x1, x2)
        loss = F.cross_entropy(output, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        acc = output.argmax(1).eq(labels).float().mean()
        with torch.no_grad():
            t1, t2 = target(x1), target(x2)
        byol = (loss_fn(predictor(online(x1)), t2.detach()) + loss_fn(predictor(online(x2)), t1.detach())).mean()
        byol_opt.zero_grad()
        byol.backward()
        byol_opt.step()
        for ma, current in zip(target.parameters(), online.parameters()):
            old, up = ma.data, current.data
            ma.data = old * 0.95 + (1 - 0.95) * up
        history.append((loss.item(), acc.item(), byol.item()))
    print(epoch, history[-1])
# %% compare
model.state_dict(), optimizer.state_dict(), online.state_dict(), target.state_dict(), byol_opt.state_dict(), history

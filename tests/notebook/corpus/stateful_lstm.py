# A stateful LSTM: hidden state kept as an attribute and across batches, truncated backpropagation, gradient noise, generation by temperature.
# %% setup
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

text = ("to be or not to be that is the question " * 4)
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
ids = torch.tensor([stoi[c] for c in text])
seqs = ids[: 24 * 6].view(24, 6)
loader = DataLoader(TensorDataset(seqs[:, :-1], seqs[:, 1:]), batch_size=8, drop_last=True)

class CharLSTM(nn.Module):
    def __init__(self, n, h=7):
        super().__init__()
        self.n, self.h = n, h
        self.lstm = nn.LSTM(n, h, 2, batch_first=True)
        self.fc = nn.Linear(h, n)
    def forward(self, x, hidden):
        r, hidden = self.lstm(x, hidden)
        return self.fc(r.contiguous().view(-1, self.h)), hidden
    def init_hidden(self, batch_size):
        weight = next(self.parameters()).data
        return (weight.new(2, batch_size, self.h).zero_(), weight.new(2, batch_size, self.h).zero_())

net = CharLSTM(len(chars))
opt = torch.optim.Adam(net.parameters(), lr=0.02)
criterion = nn.CrossEntropyLoss()
# %% cell
net.train()
counter, losses = 0, []
for e in range(2):
    h = net.init_hidden(8)
    for x, y in loader:
        counter += 1
        x = F.one_hot(x, len(chars)).double()
        inputs, targets = x, y
        h = tuple([each.data for each in h])
        net.zero_grad()
        output, h = net(inputs, h)
        loss = criterion(output, targets.reshape(8 * 5).long())
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5)
        for p in net.parameters():
            p.grad += 1e-3 * torch.randn_like(p)
        opt.step()
        losses.append(loss.item())
        if counter % 2 == 0:
            print("Epoch: {}/{}...".format(e + 1, 2), "Step: {}...".format(counter), "Loss: {:.4f}...".format(loss.item()))
net.eval()
out, h = [stoi["t"]], net.init_hidden(1)
with torch.no_grad():
    for _ in range(6):
        x = F.one_hot(torch.tensor([[out[-1]]]), len(chars)).double()
        o, h = net(x, h)
        p = F.softmax(o / 0.8, dim=1).squeeze().numpy()
        out.append(int(np.random.choice(len(chars), p=p / p.sum())))
sample = "".join(chars[i] for i in out)
# %% compare
net.state_dict(), opt.state_dict(), losses, sample, h

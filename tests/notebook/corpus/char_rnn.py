# A character model with hidden state carried from batch to batch, drop_last, view(-1, V), perplexity.
# %% setup
import math
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

V, H, B, T = 7, 6, 4, 5
text = torch.randint(0, V, (101,))
xs = text[:100].reshape(-1, T)
ys = text[1:101].reshape(-1, T)
loader = DataLoader(TensorDataset(xs, ys), batch_size=B, drop_last=True)

class CharRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(V, H)
        self.lstm = nn.LSTM(H, H, num_layers=2, batch_first=True)
        self.fc = nn.Linear(H, V)

    def forward(self, x, hidden):
        out, hidden = self.lstm(self.embed(x), hidden)
        out = self.fc(out.contiguous().view(-1, H))
        return out, hidden

    def init_hidden(self, batch_size):
        weight = next(self.parameters()).data
        return (weight.new(2, batch_size, H).zero_(), weight.new(2, batch_size, H).zero_())

net = CharRNN()
opt = torch.optim.Adam(net.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
# %% cell
history = []
for e in range(2):
    h = net.init_hidden(B)
    for counter, (x, y) in enumerate(loader):
        h = tuple([each.data for each in h])
        net.zero_grad()
        output, h = net(x, h)
        loss = criterion(output, y.view(B * T).long())
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        history.append(loss.item())
    print("Epoch: {}/{}...".format(e + 1, 2), "Loss: {:.6f}...".format(loss.item()), "Perplexity: {:.4f}".format(math.exp(loss)))
# %% compare
net.state_dict(), opt.state_dict(), history, h

# A character model of two LSTM layers with dropout between them and after them, its hidden state carried over, as in courses.
# %% setup
import numpy as np
import torch
from torch import nn

class CharRNN(nn.Module):
    def __init__(self, n_chars, n_hidden=8, n_layers=2, drop_prob=0.5):
        super().__init__()
        self.n_chars, self.n_hidden, self.n_layers = n_chars, n_hidden, n_layers
        self.lstm = nn.LSTM(n_chars, n_hidden, n_layers, dropout=drop_prob, batch_first=True)
        self.dropout = nn.Dropout(drop_prob)
        self.fc = nn.Linear(n_hidden, n_chars)

    def forward(self, x, hidden):
        r_output, hidden = self.lstm(x, hidden)
        out = self.dropout(r_output)
        out = out.contiguous().view(-1, self.n_hidden)
        return self.fc(out), hidden

    def init_hidden(self, batch_size):
        weight = next(self.parameters()).data
        return (
            weight.new(self.n_layers, batch_size, self.n_hidden).zero_(),
            weight.new(self.n_layers, batch_size, self.n_hidden).zero_(),
        )

def windows(text, n_steps):
    inputs = torch.nn.functional.one_hot(torch.tensor(text), 5).to(torch.get_default_dtype())
    return [(inputs[i : i + n_steps], torch.tensor(text[i + 1 : i + n_steps + 1])) for i in range(0, len(text) - n_steps, n_steps)]

data = windows(np.random.randint(0, 5, 121).tolist(), 5)
loader = torch.utils.data.DataLoader(data, batch_size=6, shuffle=True)
net = CharRNN(5)
# %% cell
def train(net, loader, epochs=2, lr=0.01, clip=5):
    net.train()
    opt = torch.optim.Adam(net.parameters(), lr=lr)
    criterion = nn.CrossEntropyLoss()
    losses = []
    for e in range(epochs):
        h = net.init_hidden(6)
        for x, y in loader:
            h = tuple([each.data for each in h])
            net.zero_grad()
            output, h = net(x, h)
            loss = criterion(output, y.view(-1).long())
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), clip)
            opt.step()
            losses.append(loss.item())
        print("Epoch: {}/{}... Loss: {:.4f}".format(e + 1, epochs, losses[-1]))
    return losses

losses = train(net, loader)
# %% compare
net.state_dict(), losses

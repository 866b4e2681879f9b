# An encoder and a decoder with teacher forcing by random.random(), one optimizer over both, ignore_index.
# %% setup
import random
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

PAD, SOS = 0, 1
src = torch.randint(2, 9, (28, 5))
trg = torch.cat([torch.full((28, 1), SOS), src.flip(1)], dim=1)
trg[::3, 4:] = PAD
loader = DataLoader(TensorDataset(src, trg), batch_size=6, shuffle=True)

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 6)
        self.rnn = nn.GRU(6, 8, batch_first=True)

    def forward(self, src):
        outputs, hidden = self.rnn(self.embedding(src))
        return outputs, hidden

class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(9, 6)
        self.rnn = nn.GRU(6, 8, batch_first=True)
        self.fc_out = nn.Linear(8, 9)

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.embedding(input.unsqueeze(1)), hidden)
        return self.fc_out(output.squeeze(1)), hidden

class Seq2Seq(nn.Module):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, src, trg, teacher_forcing_ratio=0.5):
        batch_size, trg_len = trg.shape
        outputs = torch.zeros(batch_size, trg_len, 9)
        _, hidden = self.encoder(src)
        input = trg[:, 0]
        for t in range(1, trg_len):
            output, hidden = self.decoder(input, hidden)
            outputs[:, t] = output
            teacher_force = random.random() < teacher_forcing_ratio
            input = trg[:, t] if teacher_force else output.argmax(1)
        return outputs

model = Seq2Seq(Encoder(), Decoder())
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
criterion = nn.CrossEntropyLoss(ignore_index=PAD)
# %% cell
losses = []
for epoch in range(2):
    epoch_loss = 0
    for i, (s, t) in enumerate(loader):
        optimizer.zero_grad()
        output = model(s, t)
        output_dim = output.shape[-1]
        output = output[:, 1:].reshape(-1, output_dim)
        t = t[:, 1:].reshape(-1)
        loss = criterion(output, t)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1)
        optimizer.step()
        epoch_loss += loss.item()
    losses.append(epoch_loss / len(loader))
    print(f"Epoch: {epoch + 1:02} | Train Loss: {losses[-1]:.3f}")
# %% compare
model.state_dict(), optimizer.state_dict(), losses

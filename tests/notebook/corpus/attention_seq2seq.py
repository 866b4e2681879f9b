# Seq2seq with attention, variable lengths, packing, a mask per source, teacher forcing by a random number for every word.
# %% setup
import random
import torch
from torch import nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

PAD, SOS, EOS = 0, 1, 2
pairs = []
for i in range(18):
    n = 2 + i % 4
    src = torch.randint(3, 9, (n,))
    pairs.append((src, torch.cat([torch.tensor([SOS]), src.flip(0), torch.tensor([EOS])])))

def collate(batch):
    batch.sort(key=lambda pair: len(pair[0]), reverse=True)
    src, trg = zip(*batch)
    return pad_sequence(src, padding_value=PAD), pad_sequence(trg, padding_value=PAD), torch.tensor([len(s) for s in src])

iterator = DataLoader(pairs, batch_size=6, shuffle=True, collate_fn=collate)

class Encoder(nn.Module):
    def __init__(self, vocab, emb, hid):
        super().__init__()
        self.embedding = nn.Embedding(vocab, emb, padding_idx=PAD)
        self.rnn = nn.GRU(emb, hid, bidirectional=True)
        self.fc = nn.Linear(2 * hid, hid)

    def forward(self, src, src_len):
        packed = pack_padded_sequence(self.embedding(src), src_len.to("cpu"), enforce_sorted=False)
        outputs, hidden = self.rnn(packed)
        outputs, _ = pad_packed_sequence(outputs, total_length=src.shape[0])
        return outputs, torch.tanh(self.fc(torch.cat((hidden[-2], hidden[-1]), dim=1)))

class Attention(nn.Module):
    def __init__(self, hid):
        super().__init__()
        self.attn, self.v = nn.Linear(3 * hid, hid), nn.Linear(hid, 1, bias=False)

    def forward(self, hidden, encoder_outputs, mask):
        hidden = hidden.unsqueeze(1).repeat(1, encoder_outputs.shape[0], 1)
        encoder_outputs = encoder_outputs.permute(1, 0, 2)
        energy = torch.tanh(self.attn(torch.cat((hidden, encoder_outputs), dim=2)))
        return F.softmax(self.v(energy).squeeze(2).masked_fill(mask == 0, -1e10), dim=1)

class Decoder(nn.Module):
    def __init__(self, vocab, emb, hid, attention):
        super().__init__()
        self.output_dim, self.attention = vocab, attention
        self.embedding = nn.Embedding(vocab, emb)
        self.rnn = nn.GRU(2 * hid + emb, hid)
        self.fc_out = nn.Linear(3 * hid + emb, vocab)

    def forward(self, input, hidden, encoder_outputs, mask):
        embedded = self.embedding(input.unsqueeze(0))
        a = self.attention(hidden, encoder_outputs, mask).unsqueeze(1)
        weighted = torch.bmm(a, encoder_outputs.permute(1, 0, 2)).permute(1, 0, 2)
        output, hidden = self.rnn(torch.cat((embedded, weighted), dim=2), hidden.unsqueeze(0))
        prediction = self.fc_out(torch.cat((output.squeeze(0), weighted.squeeze(0), embedded.squeeze(0)), dim=1))
        return prediction, hidden.squeeze(0), a.squeeze(1)

class Seq2Seq(nn.Module):
    def __init__(self, encoder, decoder, device):
        super().__init__()
        self.encoder, self.decoder, self.device = encoder, decoder, device

    def create_mask(self, src):
        return (src != PAD).permute(1, 0)

    def forward(self, src, src_len, trg, teacher_forcing_ratio=0.5):
        outputs = torch.zeros(trg.shape[0], src.shape[1], self.decoder.output_dim).to(self.device)
        encoder_outputs, hidden = self.encoder(src, src_len)
        input = trg[0, :]
        mask = self.create_mask(src)
        for t in range(1, trg.shape[0]):
            output, hidden, _ = self.decoder(input, hidden, encoder_outputs, mask)
            outputs[t] = output
            teacher_force = random.random() < teacher_forcing_ratio
            input = trg[t] if teacher_force else output.argmax(1)
        return outputs

device = "cpu"
model = Seq2Seq(Encoder(9, 4, 5), Decoder(9, 4, 5, Attention(5)), device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss(ignore_index=PAD)

def train(model, iterator, optimizer, criterion, clip):
    model.train()
    epoch_loss = 0
    for src, trg, src_len in iterator:
        optimizer.zero_grad()
        output = model(src, src_len, trg)
        output_dim = output.shape[-1]
        output = output[1:].view(-1, output_dim)
        trg = trg[1:].view(-1)
        loss = criterion(output, trg)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        epoch_loss += loss.item()
    return epoch_loss / len(iterator)
# %% cell
train_losses = []
for epoch in range(2):
    train_loss = train(model, iterator, optimizer, criterion, 1)
    train_losses.append(train_loss)
    print(f"Epoch: {epoch + 1:02} | Train Loss: {train_loss:.3f}")
model.eval()
with torch.no_grad():
    for src, trg, src_len in iterator:
        out = model(src, src_len, trg, 0)
# %% compare
model.state_dict(), optimizer.state_dict(), train_losses, out

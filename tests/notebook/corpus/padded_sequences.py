# Sequences of different lengths: a collate_fn that pads, lengths, a mask, mean over tokens.
# %% setup
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

class Sequences(Dataset):
    def __init__(self, n):
        lengths = torch.randint(2, 9, (n,))
        self.items = [torch.randint(1, 10, (int(k),)) for k in lengths]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i], self.items[i].sum() % 2

def collate(batch):
    texts, labels = zip(*batch)
    lengths = torch.tensor([len(t) for t in texts])
    padded = pad_sequence(texts, batch_first=True, padding_value=0)
    mask = padded != 0
    return padded, mask, lengths, torch.stack(labels)

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(10, 6, padding_idx=0)
        self.fc = nn.Linear(6, 2)

    def forward(self, tokens, mask):
        e = self.emb(tokens) * mask.unsqueeze(-1)
        return self.fc(e.sum(1) / mask.sum(1, keepdim=True))

loader = DataLoader(Sequences(31), batch_size=8, shuffle=True, collate_fn=collate)
model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
# %% cell
hist = []
tokens_seen = 0
padding = 0
for epoch in range(2):
    for padded, mask, lengths, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(padded, mask), labels)
        loss.backward()
        optimizer.step()
        tokens_seen += lengths.sum().item()
        padding += (~mask).sum().item()
        hist.append((padded.shape[1], loss.item(), mask.double().mean().item(), lengths.max().item()))
print(tokens_seen, padding, hist[-1][0])
# %% compare
model.state_dict(), optimizer.state_dict(), hist, tokens_seen, padding

# Masked language modelling: random masks drawn in the cell, labels -100, ignore_index by default, nn.TransformerEncoder with a padding mask.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

V, T, MASK = 12, 7, 1
tokens = torch.randint(2, V, (33, T))
lengths = torch.randint(3, T + 1, (33,))
tokens[torch.arange(T)[None] >= lengths[:, None]] = 0
loader = DataLoader(TensorDataset(tokens), batch_size=8, shuffle=True)

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(8, V)

    def forward(self, x, pad):
        return self.out(self.encoder(self.emb(x), src_key_padding_mask=pad))

model = Encoder()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
# %% cell
log = []
for epoch in range(2):
    hits = masked = 0
    for (input_ids,) in loader:
        labels = input_ids.clone()
        pad = input_ids == 0
        probability = torch.full(labels.shape, 0.3)
        probability.masked_fill_(pad, 0.0)
        masked_indices = torch.bernoulli(probability).bool()
        masked_indices[:, 0] = True
        labels[~masked_indices] = -100
        input_ids[masked_indices] = MASK
        logits = model(input_ids, pad)
        loss = criterion(logits.view(-1, V), labels.view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        masked += masked_indices.sum().item()
        hits += (logits.argmax(-1) == labels)[masked_indices].sum().item()
        log.append(loss.item())
    print(f"{epoch} masked {masked} hit {hits} loss {sum(log) / len(log):.5f}")
# %% compare
model.state_dict(), optimizer.state_dict(), log, masked, hits

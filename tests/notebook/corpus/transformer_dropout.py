# PyTorch's own transformer with dropout everywhere: in attention, between the layers, on the positions; sequence first.
# %% setup
import math
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout=0.1, max_len=50):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return self.dropout(x + self.pe[: x.size(0)])

class TransformerModel(nn.Module):
    def __init__(self, ntoken, d_model=8, nhead=2, d_hid=16, nlayers=2, dropout=0.3):
        super().__init__()
        self.pos_encoder = PositionalEncoding(d_model, dropout)
        self.transformer_encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d_model, nhead, d_hid, dropout), nlayers, enable_nested_tensor=False
        )
        self.embedding = nn.Embedding(ntoken, d_model)
        self.d_model = d_model
        self.linear = nn.Linear(d_model, ntoken)

    def forward(self, src, src_mask=None):
        src = self.pos_encoder(self.embedding(src) * math.sqrt(self.d_model))
        if src_mask is None:
            src_mask = nn.Transformer.generate_square_subsequent_mask(len(src))
        return self.linear(self.transformer_encoder(src, src_mask))

data = torch.randint(0, 11, (30, 7))
loader = DataLoader(TensorDataset(data[:, :-1], data[:, 1:]), batch_size=6, shuffle=True)
model = TransformerModel(11)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1.0, gamma=0.95)
# %% cell
losses = []
for epoch in range(2):
    model.train()
    for src, tgt in loader:
        output = model(src.t())
        loss = criterion(output.view(-1, 11), tgt.t().reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    scheduler.step()
    model.eval()
    with torch.no_grad():
        total = sum(criterion(model(s.t()).view(-1, 11), t.t().reshape(-1)).item() * len(s) for s, t in loader)
    print(epoch, total / 30)
# %% compare
model.state_dict(), losses, total

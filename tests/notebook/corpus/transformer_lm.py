# A small causal transformer: positional encodings, a mask, weight tying, view(-1, V), warmup schedule per step.
# %% setup
import math
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

vocab_size, block_size, n_embd = 11, 6, 8

class Tokens(Dataset):
    def __init__(self):
        self.data = torch.randint(0, vocab_size, (60,))

    def __len__(self):
        return len(self.data) - block_size

    def __getitem__(self, idx):
        chunk = self.data[idx : idx + block_size + 1]
        return chunk[:-1], chunk[1:]

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.qkv, self.proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 2 * n_embd), nn.GELU(), nn.Linear(2 * n_embd, n_embd))
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln1(x)).split(n_embd, dim=2)
        q, k, v = (t.view(B, T, 2, C // 2).transpose(1, 2) for t in (q, k, v))
        att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        att = att.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        x = x + self.proj(y.transpose(1, 2).contiguous().view(B, T, C))
        return x + self.mlp(self.ln2(x))

class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(n_embd, vocab_size, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, idx, targets=None):
        B, T = idx.shape
        x = self.blocks(self.tok(idx) + self.pos(torch.arange(T, device=idx.device)))
        logits = self.head(x)
        if targets is None:
            return logits, None
        B, T, C = logits.shape
        return logits, F.cross_entropy(logits.view(B * T, C), targets.view(B * T))

model = GPT()
loader = DataLoader(Tokens(), batch_size=16, shuffle=True, drop_last=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95))
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
# %% cell
losses = []
for epoch in range(2):
    for xb, yb in loader:
        logits, loss = model(xb, yb)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    with torch.no_grad():
        again = F.cross_entropy(model(xb)[0].transpose(1, 2), yb)
    print(f"step {len(losses)}: loss {loss.item():.4f} perplexity {torch.exp(loss).item():.4f} {again.item():.6f}")
# %% compare
model.state_dict(), optimizer.state_dict(), scheduler.state_dict(), losses

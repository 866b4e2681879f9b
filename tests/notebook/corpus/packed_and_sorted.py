# Sequence to sequence as tutorials have it: batches sorted by length, a packed encoder, attention, teacher forcing at random.
# %% setup
import math, random
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader
# %% cell
from torch.nn.utils.rnn import pad_sequence, pack_padded_sequence, pad_packed_sequence
rng = random.Random(1)
pairs = [([rng.randint(3, 11) for _ in range(rng.randint(2, 6))]) for _ in range(40)]
def collate(batch):
    batch = sorted(batch, key=len, reverse=True)
    src = pad_sequence([torch.tensor(b) for b in batch], batch_first=True)
    tgt = pad_sequence([torch.tensor([1] + b[::-1] + [2]) for b in batch], batch_first=True)
    return src, torch.tensor([len(b) for b in batch]), tgt
dl = DataLoader(pairs, batch_size=6, shuffle=True, collate_fn=collate)
class Enc(nn.Module):
    def __init__(s): super().__init__(); s.e = nn.Embedding(12, 8, padding_idx=0); s.r = nn.GRU(8, 10, batch_first=True, bidirectional=True); s.f = nn.Linear(20, 10)
    def forward(s, x, l):
        o, h = s.r(pack_padded_sequence(s.e(x), l, batch_first=True))
        o, _ = pad_packed_sequence(o, batch_first=True)
        return o, torch.tanh(s.f(torch.cat([h[0], h[1]], 1)))
class Dec(nn.Module):
    def __init__(s): super().__init__(); s.e = nn.Embedding(12, 8); s.r = nn.GRUCell(28, 10); s.a = nn.Linear(10, 20); s.o = nn.Linear(10, 12)
    def step(s, t, h, mem, mask):
        sc = torch.bmm(mem, s.a(h)[:, :, None]).squeeze(2).masked_fill(mask, -1e9)
        c = (sc.softmax(1)[:, :, None] * mem).sum(1)
        h = s.r(torch.cat([s.e(t), c], 1), h)
        return s.o(h), h
torch.manual_seed(2)
enc, dec = Enc(), Dec(); eo, do = torch.optim.Adam(enc.parameters(), 0.01), torch.optim.Adam(dec.parameters(), 0.01)
hist = []
for epoch in range(2):
    for src, lens, tgt in dl:
        mem, h = enc(src, lens); mask = src == 0
        t, loss = tgt[:, 0], 0
        forced = random.random() < 0.5
        for k in range(1, tgt.size(1)):
            out, h = dec.step(t, h, mem, mask)
            loss = loss + F.cross_entropy(out, tgt[:, k], ignore_index=0, reduction="sum")
            t = tgt[:, k] if forced else out.argmax(1)
        n = (tgt[:, 1:] != 0).sum()
        eo.zero_grad(); do.zero_grad(); (loss / n).backward()
        nn.utils.clip_grad_norm_(enc.parameters(), 1.0); nn.utils.clip_grad_norm_(dec.parameters(), 1.0)
        eo.step(); do.step()
        hist.append((loss / n).item())
print(math.exp(hist[-1]))
# %% compare
list(enc.parameters()), list(dec.parameters()), hist

# A tagger with a conditional random field over padded sentences, decoded in Python.
# %% setup
import torch
from torch import nn
from torch.utils.data import DataLoader

X = torch.randn(29, 6)
Y = (X.sum(1) > 0).long() + (X[:, 0] > 1).long()


class CRF(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.T = nn.Parameter(torch.randn(n, n))
        self.s = nn.Parameter(torch.randn(n))
        self.e = nn.Parameter(torch.randn(n))

    def score(self, em, tags, mask):
        L, B = tags.shape
        r = torch.arange(B)
        sc = self.s[tags[0]] + em[0, r, tags[0]]
        for i in range(1, L):
            sc = sc + (self.T[tags[i - 1], tags[i]] + em[i, r, tags[i]]) * mask[i]
        return sc + self.e[tags[mask.long().sum(0) - 1, r]]

    def norm(self, em, mask):
        sc = self.s + em[0]
        for i in range(1, em.size(0)):
            n = torch.logsumexp(sc.unsqueeze(2) + self.T + em[i].unsqueeze(1), dim=1)
            sc = torch.where(mask[i].unsqueeze(1), n, sc)
        return torch.logsumexp(sc + self.e, dim=1)

    def forward(self, em, tags, mask):
        return (self.norm(em, mask) - self.score(em, tags, mask.to(em.dtype))).mean()

    def decode(self, em, mask):
        L, B, n = em.shape
        sc = self.s + em[0]
        hist = []
        for i in range(1, L):
            nx, ix = (sc.unsqueeze(2) + self.T + em[i].unsqueeze(1)).max(1)
            sc = torch.where(mask[i].unsqueeze(1), nx, sc)
            hist.append(ix)
        ends = mask.long().sum(0) - 1
        best = []
        for b in range(B):
            t = [(sc[b] + self.e).argmax().item()]
            for h in reversed(hist[: ends[b]]):
                t.append(h[b][t[-1]].item())
            best.append(t[::-1])
        return best


emb, lstm, fc, crf = nn.Embedding(20, 8, padding_idx=0), nn.LSTM(8, 6, bidirectional=True), nn.Linear(12, 4), CRF(4)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.lstm, self.fc, self.crf = emb, lstm, fc, crf

    def feats(self, x):
        return self.fc(self.lstm(self.emb(x))[0])

    def loss(self, x, t, m):
        return self.crf(self.feats(x), t, m)


tagger = Tagger()
opt = torch.optim.Adam(tagger.parameters(), 1e-2)
lens = [int(n) for n in torch.randint(2, 7, (21,))]
sents = [torch.randint(1, 20, (n,)) for n in lens]
tags = [torch.randint(0, 4, (n,)) for n in lens]


def col(b):
    p = nn.utils.rnn.pad_sequence
    x = p([a for a, _ in b])
    return x, p([t for _, t in b]), x != 0


loader = DataLoader(list(zip(sents, tags)), 6, shuffle=True, collate_fn=col)
# %% cell
hist, dec = [], []
for ep in range(2):
    for x, t, m in loader:
        opt.zero_grad()
        l = tagger.loss(x, t, m)
        l.backward()
        opt.step()
        hist.append(l.item())
with torch.no_grad():
    for x, t, m in loader:
        dec.append(tagger.crf.decode(tagger.feats(x), m))
print(len(dec), sum(len(d) for d in dec))
# %% compare
tagger.state_dict(), hist, dec

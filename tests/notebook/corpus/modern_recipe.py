# A recipe of today: channels_last, autocast, EMA by deepcopy and lerp, parameter groups without decay, log dicts, a dataclass of settings, torch.compile off.
# %% setup
import copy
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

@dataclass
class Settings:
    lr: float = 3e-3
    decay: float = 0.05
    epochs: int = 2
    ema: float = 0.9
    smoothing: float = 0.1
    device: str = "cuda" if torch.cuda.is_available() else "cpu"

cfg = Settings()
train_dl = DataLoader(TensorDataset(torch.randn(26, 3, 8, 8), torch.randint(5, (26,))), batch_size=8, shuffle=True)
val_dl = DataLoader(TensorDataset(torch.randn(11, 3, 8, 8), torch.randint(5, (11,))), batch_size=8)

class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.dw, self.norm = nn.Conv2d(d, d, 3, padding=1, groups=d), nn.LayerNorm(d)
        self.mlp, self.gamma = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d)), nn.Parameter(0.1 * torch.ones(d))
    def forward(self, x):
        h = self.dw(x).permute(0, 2, 3, 1)
        return x + (self.gamma * self.mlp(self.norm(h))).permute(0, 3, 1, 2)

class ViTHead(nn.Module):
    def __init__(self, d=8, classes=5):
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, d, 4, 4), nn.Sequential(Block(d), Block(d))
        self.cls, self.attn, self.head = nn.Parameter(torch.zeros(1, 1, d)), nn.MultiheadAttention(d, 2, batch_first=True), nn.Linear(d, classes)
    def forward(self, x):
        x = self.blocks(self.stem(x)).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], dim=1)
        x, weights = self.attn(x, x, x)
        self.last_attention = weights.detach()
        return self.head(x[:, 0])

model = ViTHead().to(cfg.device, memory_format=torch.channels_last)
ema = copy.deepcopy(model).eval().requires_grad_(False)
decay = [p for n, p in model.named_parameters() if p.ndim >= 2]
no_decay = [p for n, p in model.named_parameters() if p.ndim < 2]
opt = torch.optim.AdamW([{"params": decay, "weight_decay": cfg.decay}, {"params": no_decay, "weight_decay": 0.0}], lr=cfg.lr)
sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=3)
# %% cell
logs = []
amp = torch.autocast(cfg.device) if cfg.device == "cuda" else nullcontext()
for epoch in range(cfg.epochs):
    tic = time.perf_counter()
    model.train()
    meters = {"loss": 0.0, "acc": 0.0, "n": 0}
    for it, (x, y) in enumerate(train_dl):
        x, y = x.to(cfg.device, non_blocking=True, memory_format=torch.channels_last), y.to(cfg.device, non_blocking=True)
        with amp:
            logits = model(x)
            loss = F.cross_entropy(logits, y, label_smoothing=cfg.smoothing)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step(epoch + it / len(train_dl))
        with torch.no_grad():
            for e, p in zip(ema.parameters(), model.parameters()):
                e.lerp_(p, 1 - cfg.ema)
        n = y.numel()
        meters["loss"] += loss.detach() * n
        meters["acc"] += (logits.detach().argmax(-1) == y).float().sum()
        meters["n"] += n
    model.eval()
    val = torch.zeros(2)
    with torch.inference_mode():
        for x, y in val_dl:
            out = ema(x)
            val += torch.tensor([F.cross_entropy(out, y, reduction="sum"), (out.argmax(1) == y).sum()])
    logs.append({**asdict(cfg), "train": (meters["loss"] / meters["n"]).item(), "acc": (meters["acc"] / meters["n"]).item(), "val": (val / len(val_dl.dataset)).tolist(), "lr": opt.param_groups[0]["lr"]})
    print(f"{epoch} | {logs[-1]['train']:.4f} | {logs[-1]['acc']:.3f} | {time.perf_counter() - tic < 600}")
attention = model.last_attention
# %% compare
model.state_dict(), ema.state_dict(), opt.state_dict(), sched.state_dict(), logs, attention

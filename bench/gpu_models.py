"""Setups of the jobs of ``bench.gpu``: source that makes ``model``, ``samples``, ``loss_of`` and ``optimizer`` on ``device``."""

from __future__ import annotations

CNN = """
model = nn.Sequential(
    nn.Conv2d(1, {channels}, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d({channels}, 2 * {channels}, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
    nn.Linear(32 * {channels}, {classes}),
).to(device)
samples = torch.randn(256, 1, {size}, {size}), torch.randint({classes}, (256,))
loss_of = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
"""

RESNET = """
class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.second, self.second_norm = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        same = stride == 1 and before == after
        self.short = nn.Identity() if same else nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
    def forward(self, x):
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(y)) + self.short(x))

def resnet18(width, classes, large):
    first = nn.Conv2d(3, width, 7, 2, 3, bias=False) if large else nn.Conv2d(3, width, 3, 1, 1, bias=False)
    stem = [first, nn.BatchNorm2d(width), nn.ReLU()]
    blocks, before = [], width
    for stage, after in enumerate((width, 2 * width, 4 * width, 8 * width)):
        blocks += [Block(before, after, 1 if stage == 0 else 2), Block(after, after, 1)]
        before = after
    pool = [nn.MaxPool2d(3, 2, 1)] if large else []
    return nn.Sequential(*stem, *pool, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))

model = resnet18({channels}, {classes}, {size} > 64).to(device, memory_format=torch.channels_last)
samples = torch.randn(128, 3, {size}, {size}), torch.randint({classes}, (128,))
loss_of = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
"""

_TOKENS = """
def loss_of(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten())

model = model.to(device)
tokens = torch.randint({vocabulary}, (64, {length} + 1))
samples = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
"""

GPT = (
    """
class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    def forward(self, x):  # (B, T, C)
        B, T, C = x.shape
        q, k, v = (part.view(B, T, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm(x)).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(x)

class Gpt(nn.Module):
    def __init__(self, depth, width, heads, length, vocabulary):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
    def forward(self, x):  # (B, T)
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.tokens(x) + self.places(places))))

model = Gpt({depth}, {width}, {heads}, {length}, {vocabulary})
"""
    + _TOKENS
)

LLAMA = (
    """
def rotated(x):  # (B, H, T, D)
    T, D = x.shape[-2:]
    angles = torch.outer(torch.arange(T, device=x.device), 10000.0 ** (-torch.arange(0, D, 2, device=x.device) / D))
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, inner = heads, 8 * width // 3
        self.norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)
    def forward(self, x):  # (B, T, C)
        B, T, C = x.shape
        h = self.norm(x)
        q, k, v = (part(h).view(B, T, self.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        h = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))

class Llama(nn.Module):
    def __init__(self, depth, width, heads, vocabulary):
        super().__init__()
        self.tokens, self.blocks = nn.Embedding(vocabulary, width), nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
    def forward(self, x):  # (B, T)
        return self.head(self.norm(self.blocks(self.tokens(x))))

model = Llama({depth}, {width}, {heads}, {vocabulary})
"""
    + _TOKENS
)

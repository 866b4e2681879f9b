"""Ten models of a megabyte or more, as cells of a notebook make them, whose plans are measured."""

from __future__ import annotations

from typing import NamedTuple


class Model(NamedTuple):
    """What makes a model, its batches and its loss, as Python."""

    make: str
    inputs: str
    targets: str
    batch: int
    loss: str = "nn.functional.cross_entropy"


SETUP = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)

class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
    def forward(self, x):
        return x + self.body(x)

class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.embedding, self.rnn, self.head = nn.Embedding(2000, 128), kind(128, 256, 2, batch_first=True), nn.Linear(256, 2000)
    def forward(self, x):
        return self.head(self.rnn(self.embedding(x))[0]).transpose(1, 2)

class Language(nn.Module):
    def __init__(self, tied):
        super().__init__()
        self.embedding = nn.Embedding(4000, 128)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, dropout=0.1), 4)
        self.head = nn.Linear(128, 4000, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
    def forward(self, x):
        return self.head(self.encoder(self.embedding(x))).transpose(1, 2)

class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.middle = nn.Conv2d(3, 64, 3, padding=1), nn.Conv2d(64, 256, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(256, 64, 2, 2), nn.Conv2d(128, 5, 1)
    def forward(self, x):
        down = F.relu(self.down(x))
        return self.last(torch.cat([down, F.relu(self.up(F.relu(self.middle(F.max_pool2d(down, 2)))))], 1))

model = {make}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
criterion = {loss}
loader = DataLoader(TensorDataset({inputs}, {targets}), batch_size={batch})
size = sum(one.nbytes for one in (*model.parameters(), *model.buffers()))
"""
MODELS = {
    "mlp": Model(
        "nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))",
        "torch.randn(192, 256)",
        "torch.randint(10, (192,))",
        64,
    ),
    "deep mlp": Model(
        "nn.Sequential(*[one for _ in range(12) for one in (nn.Linear(512, 512), nn.LayerNorm(512), nn.GELU(), nn.Dropout(0.1))], "
        "nn.Linear(512, 10))",
        "torch.randn(192, 512)",
        "torch.randint(10, (192,))",
        64,
    ),
    "cnn": Model(
        "nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), "
        "nn.Linear(2048, 512), nn.ReLU(), nn.Linear(512, 10))",
        "torch.randn(96, 3, 16, 16)",
        "torch.randint(10, (96,))",
        32,
    ),
    "resnet": Model(
        "nn.Sequential(nn.Conv2d(3, 128, 3, padding=1), *[Residual(128) for _ in range(4)], nn.AdaptiveAvgPool2d(1), nn.Flatten(), "
        "nn.Linear(128, 10))",
        "torch.randn(48, 3, 16, 16)",
        "torch.randint(10, (48,))",
        16,
    ),
    "lstm": Model("Recurrent(nn.LSTM)", "torch.randint(2000, (48, 24))", "torch.randint(2000, (48, 24))", 16),
    "gru": Model("Recurrent(nn.GRU)", "torch.randint(2000, (48, 12))", "torch.randint(2000, (48, 12))", 16),
    "transformer": Model("Language(False)", "torch.randint(4000, (24, 32))", "torch.randint(4000, (24, 32))", 8),
    "tied transformer": Model("Language(True)", "torch.randint(4000, (24, 32))", "torch.randint(4000, (24, 32))", 8),
    "u-net": Model("UNet()", "torch.randn(24, 3, 32, 32)", "torch.randint(5, (24, 32, 32))", 8),
    "bag": Model(
        "nn.Sequential(nn.EmbeddingBag(20000, 64), nn.Linear(64, 10))", "torch.randint(20000, (192, 12))", "torch.randint(10, (192,))", 64
    ),
}

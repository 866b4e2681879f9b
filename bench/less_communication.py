"""What less communication saves and changes: ``python -m bench.less_communication [--engines 2] [--seeds 3] [--epochs 3] [--ways sync]``.

Two jobs, each as it is and with each way to exchange less, from the same seed, in turns on one cluster: the digits of scikit-learn by a
convolutional network under Adam, and a small language model by characters under AdamW. Bytes are those that an engine has told the
others to read in an exchange of any kind, counted where the ranks meet. Accuracy and loss are of held-out data; between seeds they vary
without any option too, which is what a difference is to be held against.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

from .contenders import Kernel

LIMIT = 600.0  # seconds of a cell
WAYS = ("", "--compress bf16", "--compress fp16", "--sync-every 4", "--sync-every 16")
SETUP = """
%load_ext jupyter_dtrain
import json
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
"""
DIGITS = """
from sklearn.datasets import load_digits
torch.manual_seed({seed})
pixels, digits = load_digits(return_X_y=True)
pixels, digits = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(digits)
order = torch.randperm(len(pixels))
pixels, digits = pixels[order], digits[order]
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(pixels[:1437], digits[:1437]), batch_size=32, shuffle=True)
def judged():
    with torch.no_grad():
        return (model(pixels[1437:]).argmax(1) == digits[1437:]).float().mean().item() * 100
"""
TEXT = """
import inspect
torch.manual_seed({seed})
text = "".join(inspect.getsource(one) for one in (argparse, inspect, statistics))
known = sorted(set(text))
numbers = torch.tensor([known.index(letter) for letter in text])
rows = numbers[: len(numbers) // 33 * 33].view(-1, 33)
rows = rows[torch.randperm(len(rows))]
class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.place = nn.Embedding(len(known), 64), nn.Embedding(32, 64)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.layers, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(64, len(known))
    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(32)
        return self.out(self.layers(self.embedding(x) + self.place.weight, mask=mask, is_causal=True))
model = Letters()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
loader = DataLoader(TensorDataset(rows[512:2560, :-1], rows[512:2560, 1:]), batch_size=32, shuffle=True)
def judged():
    with torch.no_grad():
        return F.cross_entropy(model(rows[:512, :-1]).flatten(0, 1), rows[:512, 1:].flatten()).item()
"""
CELL = """%%distribute --engines {engines} --device cpu {way}
from jupyter_dtrain.engine.comm.meeting_place import MeetingPlace
exchanged, meet = 0, MeetingPlace._meet
def counted(self, num_bytes, *rest):
    global exchanged
    exchanged += num_bytes
    return meet(self, num_bytes, *rest)
MeetingPlace._meet = counted
for epoch in range({epochs}):
    for x, y in loader:
        loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
MeetingPlace._meet = meet
"""
READ = "print(json.dumps([exchanged, judged(), torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()]))"
JOBS = {"digits": (DIGITS, "accuracy, %"), "text": ("import argparse, statistics" + TEXT, "loss")}


class Figures(NamedTuple):
    """Of one run: bytes that an engine has shown the others, what the model is judged by, and its weights."""

    exchanged: int
    judged: float
    weights: list[float]


def distance(one: Figures, other: Figures) -> float:
    """Return how far the weights of two runs are apart, of the length of the first's."""
    apart = sum((a - b) ** 2 for a, b in zip(one.weights, other.weights, strict=True))
    return float((apart / sum(a**2 for a in one.weights)) ** 0.5)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.less_communication", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=["compress", "sync"], default=["compress", "sync"])
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), default=list(JOBS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        kernel = Kernel(Path(folder))
        try:
            kernel.run(SETUP)
            for name in options.jobs:
                setup, what = JOBS[name]
                found: dict[str, list[Figures]] = {way: [] for way in WAYS if not way or way[2:].startswith(tuple(options.ways))}
                for seed in range(options.seeds):
                    for way, figures in found.items():
                        kernel.run(setup.format(seed=seed))
                        kernel.run(CELL.format(engines=options.engines, way=way, epochs=options.epochs), LIMIT)
                        figures.append(Figures(*json.loads(kernel.run(READ))))
                for way, figures in found.items():
                    judged = [one.judged for one in figures]
                    part = statistics.mean(one.exchanged / plain.exchanged for one, plain in zip(figures, found[""], strict=True))
                    apart = statistics.mean(distance(plain, one) for one, plain in zip(figures, found[""], strict=True))
                    print(
                        f"{name}, {way or 'as it is'}: {statistics.mean(one.exchanged for one in figures) / 1e6:.2f} MB an engine "
                        f"({part:.4f}), {what} {statistics.mean(judged):.4f} ({min(judged):.4f} to {max(judged):.4f}), "
                        f"weights {apart:.1e} away",
                        flush=True,
                    )
        finally:
            kernel.close()


if __name__ == "__main__":
    main()

"""What is trained in the comparison: the same model, data and global batches for every contender.

A job is source text, because that is what a notebook and a script have in common. Its setup makes ``model``, ``data`` and ``loss_of``;
the loop stands beside it in two forms: as a cell without a word about processes, and by hand with DistributedDataParallel. Rank 0 writes
the time of every step into `STAMPS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

STAMPS = Path("stamps.json")

IMPORTS = """
import itertools, json, os, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

torch.manual_seed(0)
"""

MADE = """
loader = DataLoader(data, batch_size={batch_size}, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
"""

MADE_BY_HAND = """
loader = DataLoader(data, batch_size={batch_size} // dist.get_world_size(), sampler=DistributedSampler(data))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
"""

LOOP = """
stamps = []
for epoch in range({epochs}):
    for x, y in itertools.islice(loader, {steps}):
        optimizer.zero_grad()
        loss = loss_of({model}(x), y)
        {backward}
        optimizer.step()
        stamps.append(time.time())
"""

WRITTEN = f'Path("{STAMPS}").write_text(json.dumps(stamps))\n'


@dataclass(frozen=True, kw_only=True)
class Job:
    """One thing to train.

    Attributes
    ----------
    name : str
    setup : str
        Makes ``model``, ``data`` and ``loss_of(output, target)``.
    batch_size : int
        Samples of a step, over all processes.
    epochs : int
    steps : int
        Of each epoch.
    """

    name: str
    setup: str
    batch_size: int
    epochs: int = 1
    steps: int

    @property
    def cell(self) -> str:
        """The loop as one writes it for one process."""
        return self._filled(MADE + LOOP, model="model", backward="loss.backward()") + WRITTEN

    @property
    def by_hand(self) -> str:
        """The loop in a process of a group, with DistributedDataParallel."""
        wrapped = "ddp = DistributedDataParallel(model)\n"
        return (
            wrapped + self._filled(MADE_BY_HAND + LOOP, model="ddp", backward="loss.backward()") + self._of_rank_0("dist.get_rank() == 0")
        )

    @property
    def script(self) -> str:
        """All of it as a script for ``torchrun``."""
        return f'{IMPORTS}dist.init_process_group("gloo")\n{self.setup}{self.by_hand}dist.destroy_process_group()\n'

    @property
    def for_accelerate(self) -> str:
        """The loop in accelerate's own words."""
        prepared = """
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
prepared, optimizer, loader = accelerator.prepare(model, optimizer, loader)
"""
        loop = self._filled(MADE + prepared + LOOP, model="prepared", backward="accelerator.backward(loss)")
        body = loop + self._of_rank_0("accelerator.is_main_process")
        return "def train():\n" + "".join(f"    {line}\n" for line in body.splitlines()) + "notebook_launcher(train, num_processes=2)\n"

    def _filled(self, text: str, *, model: str, backward: str) -> str:
        return text.format(batch_size=self.batch_size, epochs=self.epochs, steps=self.steps, model=model, backward=backward)

    @staticmethod
    def _of_rank_0(condition: str) -> str:
        return f"if {condition}:\n    {WRITTEN}"


DIGITS = """
from sklearn.datasets import load_digits
images, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16, torch.tensor(labels))
model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.GELU(), nn.Conv2d(32, 64, 3), nn.GELU(), nn.Flatten(), nn.Linear(1024, 10))
loss_of = nn.CrossEntropyLoss()
"""

TRANSFORMER = """
class Text(Dataset):
    def __init__(self, length):
        files = sorted(Path(os.__file__).parent.glob("*.py"))
        self.length, self.text = length, torch.frombuffer(bytearray(b"".join(f.read_bytes() for f in files)), dtype=torch.uint8)
    def __len__(self):
        return (len(self.text) - 1) // self.length
    def __getitem__(self, index):
        part = self.text[index * self.length : (index + 1) * self.length + 1].long()
        return part[:-1], part[1:]

class Transformer(nn.Module):
    def __init__(self, length, width, depth):
        super().__init__()
        self.embed, self.place = nn.Embedding(256, width), nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)
    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        return self.head(self.layers(self.embed(x) + self.place, mask=mask, is_causal=True))

def loss_of(output, target):
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())

data = Text({length})
model = Transformer({length}, {width}, {depth})
"""

MLP = """
layers = [nn.Linear(1024, {width}), nn.GELU(), nn.Linear({width}, {width}), nn.GELU(), nn.Linear({width}, 2048), nn.Linear(2048, 10)]
model = nn.Sequential(*layers)
data = TensorDataset(torch.randn(2048, 1024), torch.randint(10, (2048,)))
loss_of = nn.CrossEntropyLoss()
"""

DATASET = """
data = TensorDataset(torch.randn({rows}, 1024), torch.randint(10, ({rows},)))
model = nn.Sequential(nn.Linear(1024, 256), nn.GELU(), nn.Linear(256, 10))
loss_of = nn.CrossEntropyLoss()
"""


def jobs(*, quick: bool) -> list[Job]:
    """Return the jobs, or with `quick` the same ones in small."""
    shape = {"length": 32, "width": 128, "depth": 2} if quick else {"length": 64, "width": 384, "depth": 6}
    text = TRANSFORMER
    for name, value in shape.items():
        text = text.replace(f"{{{name}}}", str(value))
    return [
        Job(name="digits CNN", setup=DIGITS, batch_size=64, epochs=1 if quick else 10, steps=28),
        Job(name="transformer, 0.4M parameters" if quick else "transformer, 10.9M parameters", setup=text, batch_size=16, steps=8),
        Job(
            name="MLP, 5M parameters" if quick else "MLP, 92M parameters",
            setup=MLP.format(width=1024 if quick else 8192),
            batch_size=32,
            steps=6,
        ),
        Job(
            name="dataset of 64 MB" if quick else "dataset of 1 GB",
            setup=DATASET.format(rows=2**14 if quick else 2**18),
            batch_size=256,
            steps=40 if quick else 300,
        ),
    ]

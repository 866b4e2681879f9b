"""Code that distributes itself runs as it stands in its own documentation: by hand, with accelerate, with Lightning."""

from __future__ import annotations

import pytest

DATA = """
torch.manual_seed(0)
inputs = torch.randn(256, 5)
targets = (inputs.sum(1) > 0).long()
dataset = TensorDataset(inputs, targets)
"""


@pytest.fixture
def data(notebook):
    notebook.run(DATA)
    return notebook


def test_ddp_by_hand(data):
    data.run("import copy; model = nn.Linear(5, 2); start = copy.deepcopy(model.state_dict())")
    cell = data.run("""%%distribute --engines 2 --strategy none
import os
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
wrapped = DistributedDataParallel(model)
optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
loader = DataLoader(dataset, batch_size=16, sampler=DistributedSampler(dataset, shuffle=False))
for x, y in loader:
    optimizer.zero_grad()
    F.cross_entropy(wrapped(x), y).backward()
    optimizer.step()
print(os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"], dist.get_world_size(), len(loader), len(x))
""")
    assert cell.stdout == "0 0 2 2 8 16\n"
    # Two ranks of 16 samples that the sampler deals out in turn are a batch of 32 in order.
    data.run("""
expected = nn.Linear(5, 2)
expected.load_state_dict(start)
optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
for x, y in DataLoader(dataset, batch_size=32):
    optimizer.zero_grad()
    F.cross_entropy(expected(x), y).backward()
    optimizer.step()
""")
    assert data.value("(model.weight - expected.weight).abs().max().item()") < 1e-12
    assert data.value("type(wrapped).__name__") == "Linear"  # a wrapper is nothing without its process group
    assert data.value("wrapped is model")


def test_the_ranks_own_group_is_back_afterwards(data):
    data.run("model = nn.Linear(5, 2)")
    data.run('%%distribute --engines 2 --strategy none\nimport torch.distributed as dist\ndist.init_process_group("gloo")')
    cell = data.run("""%%distribute --engines 2
for x, y in DataLoader(dataset, batch_size=64):
    F.cross_entropy(model(x), y).backward()
print(len(x), dist.get_world_size())
""")
    assert cell.stdout == "64 2\n"


def test_a_rank_waits_for_the_others_to_be_connected(data, tmp_path):
    """A cell that ends at once would close connections that another rank still makes, and gloo's error would be that rank's."""
    cell = data.run(f"""%%distribute --engines 2 --strategy none
import os, pathlib, time
import torch.distributed as dist
from torch.distributed import distributed_c10d

connected = pathlib.Path({str(tmp_path)!r}) / "connected"
make = distributed_c10d._new_process_group_helper

def make_slowly(*args, **options):
    made = make(*args, **options)
    if os.environ["RANK"] == "1":
        time.sleep(0.3)
        connected.touch()
    return made

distributed_c10d._new_process_group_helper = make_slowly
try:
    dist.init_process_group("gloo")
finally:
    distributed_c10d._new_process_group_helper = make
print(connected.exists())
""")
    assert cell.stdout == "True\n"


def test_accelerate(data):
    pytest.importorskip("accelerate")
    cell = data.run("""%%distribute --engines 2 --strategy none
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(dataset, batch_size=16)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
losses = []
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    losses.append(accelerator.reduce(loss.detach(), "mean").item())
accelerator.print(accelerator.num_processes, len(loader))
model = accelerator.unwrap_model(model)
del accelerator, optimizer, loader
""")
    assert cell.stdout == "2 8\n"
    assert data.value("losses[-1] < losses[0]")
    assert data.value("type(model).__name__") == "Linear"


ACCELERATED = """
from accelerate import Accelerator

torch.manual_seed(2)
accelerator = Accelerator(cpu=True)
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(dataset, batch_size=16))
losses = []
for x, y in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    losses.append(loss.item())
print(accelerator.num_processes, len(losses))
weight = accelerator.unwrap_model(model).weight.sum().item()
"""
LEAVE = "del accelerator, model, optimizer, loader"


@pytest.mark.long
def test_programs_leave_nothing_in_the_engines(data):
    """A library's own state outlives the process group: neither another such cell nor an ordinary one is to find it."""
    pytest.importorskip("accelerate")
    data.run(ACCELERATED)
    alone = data.value("weight, losses")
    found = []
    for line in ("--strategy none", "--strategy none", "", "--strategy none", ""):
        data.run("weight = losses = None")
        cell = data.run(f"%%distribute --engines 2 {line}\n{ACCELERATED}{LEAVE if line else ''}")
        found.append((cell.stdout, data.value("weight, losses")))
    assert [said for said, _ in found] == ["2 8\n", "2 8\n", "1 16\n", "2 8\n", "1 16\n"]
    assert found[0] == found[1] == found[3]
    for _, (weight, losses) in (found[2], found[4]):
        assert weight == pytest.approx(alone[0], rel=1e-6)
        assert losses == pytest.approx(alone[1], rel=1e-5)
    # Made in one cell and used in another, it is the notebook's.
    cell = data.run("%%distribute --engines 2\nscaled = accelerator.prepare(nn.Linear(2, 2)); print(accelerator.num_processes)")
    assert cell.stdout == "1\n"
    data.run("del accelerator; from accelerate.state import AcceleratorState; AcceleratorState._reset_state(True)")


def test_lightning(data):
    pytest.importorskip("lightning")
    data.run("""
import lightning

class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(5, 2)

    def training_step(self, batch, index):
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

classifier = Classifier()
before = classifier.net.weight.detach().clone()
""")
    cell = data.run("""%%distribute --engines 2 --strategy none
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(classifier, DataLoader(dataset, batch_size=16))
print(trainer.world_size, trainer.global_step)
del trainer
""")
    assert cell.stdout.splitlines()[-1] == "2 16"
    assert data.value("(classifier.net.weight - before).abs().max().item()") > 0.01


def test_a_rank_that_fails_before_the_group_meets(data):
    """Rank 0 waits in the store where nothing can interrupt it: the error is the user's, and the next cell has new engines."""
    cell = data.fail("""%%distribute --engines 2 --strategy none
import os
import torch.distributed as dist
if os.environ["RANK"] == "1":
    raise ValueError("no data here")
dist.init_process_group("gloo")
""")
    assert cell.error == ("ValueError", "no data here")
    assert "rank 1" in cell.traceback
    assert data.run("%%distribute --engines 2\n1 + 1").result == "2"
    data.run("%distribute start -n 3 --device cpu")

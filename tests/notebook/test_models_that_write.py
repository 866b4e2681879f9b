"""Models whose ``forward`` writes: once for each call, and what the whole batch comes to."""

from __future__ import annotations

import pytest

SETUP = """
import csv, io, logging, os
import numpy as np
from pathlib import Path
class Kept(logging.Handler):
    def emit(self, record): seen.append(record.getMessage())
logger = logging.getLogger("written")
logger.handlers, logger.propagate = [Kept()], False
logger.setLevel("INFO")
seen, text = [], io.StringIO()
rows = csv.writer(text)
for path in Path().glob("written*"): path.unlink()
torch.manual_seed(1)
X = torch.randn(26, 4); Y = X.sin().sum(1, keepdim=True)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.calls = nn.Linear(4, 1), 0
    def forward(self, x):
        out = self.linear(x)
        {writes}
        return out
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
"""
CELL = """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
"""
WRITES = {
    "opened": "with open('written', 'a') as file: file.write(f'{len(x)} {out.mean():.9f} ')",
    "a path": "path = Path('written'); path.write_text((path.read_text() if path.exists() else '') + f'{len(x)} {out.sum():.9f} ')",
    "a descriptor": "at = os.open('written', os.O_APPEND | os.O_CREAT | os.O_WRONLY); os.write(at, b'x'); os.close(at)",
    "saved": "torch.save(out.detach(), f'written{len(os.listdir())}.pt')",
    "arrays": "np.save(f'written{len(os.listdir())}.npy', out.detach().numpy())",
    "logged": "logger.info('%d %.9f', len(x), out.mean().item())",
}
READ = """
(
    seen, text.getvalue(),
    [Path(name).read_text() for name in ["written"] if Path(name).exists()],
    [torch.load(path) for path in sorted(Path().glob("written*.pt"), key=lambda path: (len(path.name), path.name))],
    [torch.from_numpy(np.load(path)) for path in sorted(Path().glob("written*.npy"), key=lambda path: (len(path.name), path.name))],
    [p.detach() for p in model.parameters()],
)
"""


@pytest.mark.parametrize("name", WRITES)
def test_what_a_model_writes_is_written_once_for_each_call(notebook, name):
    notebook.run(SETUP.format(writes=WRITES[name]))
    notebook.run(CELL)
    seen, text, *plain = notebook.value(READ)
    notebook.run(SETUP.format(writes=WRITES[name]))
    notebook.run(f"%%distribute --engines 2\n{CELL}")
    found_seen, found_text, *found = notebook.value(READ)
    assert (found_seen, found_text, found[0]) == (seen, text, plain[0])
    assert [len(part) for part in found] == [len(part) for part in plain]
    assert all(
        (left - right).abs().max() < 1e-9 for a, b in zip(found[1:], plain[1:], strict=True) for left, right in zip(a, b, strict=True)
    )


LATE = """
torch.manual_seed(4)
torch.set_default_dtype(torch.float64)
inputs = torch.randn(50, 4)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8, shuffle=True)
losses = []
class Looking(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
    def forward(self, x):
        if len(losses) > 2:
            look(x)
        return self.layer(x)
model = Looking()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
LATE_CELL = """
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
LOOKS = {
    "prints": "print(tuple(x.shape))",
    "writes to standard output": "__import__('sys').stdout.write(f'{tuple(x.shape)}{chr(10)}')",
    "appends to a file": "print(tuple(x.shape), file=open('late.txt', 'a'), flush=True)",
    "saves an array": "__import__('numpy').save(f'late{len(losses)}.npy', x.detach().numpy())",
}
LATE_FOUND = """
from pathlib import Path
import numpy
late = Path("late.txt").read_text().splitlines() if Path("late.txt").exists() else []
late += [str(numpy.load(path).shape) for path in sorted(Path().glob("late*.npy"))]
[path.unlink() for path in Path().glob("late*")]
"""


@pytest.mark.parametrize("does", LOOKS)
def test_what_a_model_begins_to_write_in_a_later_call_is_of_the_whole_batch(notebook, does):
    found = []
    for line in ("", "%%distribute --engines 2"):
        notebook.run(f"{LATE}\ndef look(x): {LOOKS[does]}\n")
        cell = notebook.run(line + LATE_CELL)
        notebook.run(LATE_FOUND)
        found.append((cell.stdout.split("\n"), notebook.value("late"), notebook.value("losses")))
    (printed, files, losses), (shown, written, found_losses) = found
    assert [text for text in shown if text.startswith("(")] == [text for text in printed if text.startswith("(")]
    assert written == files
    assert len(files) + sum(text.startswith("(") for text in printed) == 4
    assert found_losses == pytest.approx(losses, rel=1e-9)

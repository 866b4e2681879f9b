"""What people write for a GPU, in its spellings old and new, comes to the same plain, on one engine and on two."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu(on_cpu=True)

SETUP = """
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
device = torch.device("DEVICE")
x, y = torch.randn(44, 3, 8, 8), torch.randint(0, 4, (44,))
data = TensorDataset(x, y)
loader = DataLoader(data, batch_size=12, shuffle=True)
model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(216, 4))
criterion = nn.CrossEntropyLoss()
losses = []
"""
STEPS = """
for inputs, targets in loader:
    inputs, targets = MOVED
    optimizer.zero_grad()
    loss = criterion(model(inputs), targets)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print(f"{losses[-1]:.8f}", inputs.device.type, len(inputs))
"""
MADE = "model = model.to(device)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)\n"
COMPARE = "model.state_dict(), losses, optimizer.state_dict()['state']"
MOVED = "inputs.to(device), targets.to(device)"

CELLS: dict[str, tuple[str, str]] = {
    "to_device": (SETUP, MADE + STEPS),
    "made_before_the_cell": (SETUP + MADE, STEPS),
    "device_by_text": (SETUP + "device = 'DEVICE'\n", MADE + STEPS),
    "asked_for_in_the_cell": (
        SETUP,
        "device = torch.device('cuda' if torch.cuda.is_available() and 'DEVICE' == 'cuda' else 'cpu')\n" + MADE + STEPS,
    ),
    "by_the_models_parameters": (
        SETUP + MADE,
        STEPS.replace("MOVED", "(part.to(next(model.parameters()).device) for part in (inputs, targets))"),
    ),
    "pinned_and_non_blocking": (
        SETUP + "loader = DataLoader(data, batch_size=12, shuffle=True, num_workers=2, pin_memory='DEVICE' == 'cuda')\n",
        MADE + STEPS.replace("MOVED", "inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)"),
    ),
    "persistent_workers": (
        SETUP + "loader = DataLoader(data, batch_size=12, shuffle=True, num_workers=1, persistent_workers=True)\n",
        MADE + "for epoch in range(2):\n" + "".join(f"    {line}\n" for line in STEPS.strip().splitlines()),
    ),
    "channels_last": (
        SETUP,
        MADE
        + "model = model.to(memory_format=torch.channels_last)\n"
        + STEPS.replace("MOVED", "inputs.to(device, memory_format=torch.channels_last), targets.to(device)")
        + "print(model[0].weight.is_contiguous(memory_format=torch.channels_last))\n",
    ),
    "data_on_the_card": (
        SETUP + "data.tensors = tuple(part.to(device) for part in data.tensors)\n",
        MADE + STEPS.replace("MOVED", "inputs, targets"),
    ),
    "epoch_total_on_the_card": (
        SETUP + MADE,
        """
total, right = torch.zeros((), device=device), torch.zeros((), device=device, dtype=torch.long)
for inputs, targets in loader:
    inputs, targets = inputs.to(device), targets.to(device)
    optimizer.zero_grad(set_to_none=True)
    output = model(inputs)
    loss = criterion(output, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    total += loss.detach() * len(inputs)
    right += (output.argmax(1) == targets).sum()
losses.append((total.item() / len(data), right.item()))
print(losses)
""",
    ),
    "made_on_the_card": (
        SETUP,
        "with torch.device(device):\n    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(216, 4))\n"
        + MADE
        + STEPS.replace("MOVED", "inputs.to(device) + 0.01 * torch.randn(inputs.shape, device=device), targets.to(device)"),
    ),
    "evaluated": (
        SETUP + MADE,
        STEPS
        + """
model.eval()
with torch.inference_mode():
    found = torch.cat([model(inputs.to(device)).softmax(1) for inputs, _ in loader]).cpu()
model.train()
losses.append(found.sum(0).tolist())
""",
    ),
}
ON_CARDS: dict[str, tuple[str, str]] = {
    "cuda_methods": (
        SETUP + "model.cuda()\noptimizer = torch.optim.Adam(model.parameters(), lr=1e-2)\n",
        STEPS.replace("MOVED", "inputs.cuda(), targets.cuda(non_blocking=True)"),
    ),
    "cuda_0_by_text": (SETUP, MADE.replace("device", "'cuda:0'") + STEPS.replace("MOVED", "inputs.to('cuda:0'), targets.to('cuda:0')")),
    "cuda_by_number": (SETUP, MADE.replace("device", "0") + STEPS.replace("MOVED", "inputs.cuda(0), targets.to(0)")),
    "settings": (
        SETUP + "torch.backends.cudnn.benchmark = True\ntorch.backends.cuda.matmul.allow_tf32 = False\n",
        "torch.cuda.set_device(0)\ntorch.cuda.empty_cache()\n"
        + MADE
        + STEPS
        + "torch.cuda.synchronize()\nprint(torch.cuda.device_count(), torch.cuda.current_device(), torch.backends.cudnn.benchmark)\n",
    ),
    "fused_optimizer": (
        SETUP,
        "model.to(device)\noptimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)\n" + STEPS,
    ),
    "side_stream": (
        SETUP,
        MADE
        + "stream = torch.cuda.Stream()\n"
        + STEPS.replace("MOVED", MOVED).replace(
            "    losses.append", "    torch.cuda.current_stream().wait_stream(stream)\n    losses.append"
        ),
    ),
}
HALF: dict[str, tuple[str, str]] = {
    "autocast_fp16_and_scaler": (
        SETUP,
        MADE
        + """
scaler = torch.amp.GradScaler("cuda", init_scale=256.0)
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(inputs.float().to(device)), targets.to(device))
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    losses.append(loss.item())
print(scaler.get_scale())
""",
    ),
    "old_amp_names": (
        SETUP,
        MADE
        + """
import warnings
with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)
    scaler = torch.cuda.amp.GradScaler(init_scale=256.0)
    for inputs, targets in loader:
        optimizer.zero_grad()
        with torch.cuda.amp.autocast():
            loss = criterion(model(inputs.float().cuda()), targets.cuda())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
print(scaler.get_scale())
""",
    ),
    "bf16": (
        SETUP,
        MADE
        + STEPS.replace(
            "    loss = criterion(model(inputs), targets)",
            "    with torch.autocast('cuda', dtype=torch.bfloat16):\n        loss = criterion(model(inputs.float()), targets)",
        ),
    ),
    "skipped_by_the_scaler": (
        SETUP + "x[7] = 1e30\n",
        MADE
        + """
scaler, skipped = torch.amp.GradScaler("cuda", init_scale=2.0**14), 0
for inputs, targets in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = criterion(model(inputs.float().to(device)), targets.to(device))
    scaler.scale(loss).backward()
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    skipped += scaler.get_scale() < before
losses.append(skipped)
print(skipped, scaler.get_scale())
""",
    ),
}


def filled(text: str, device: str) -> str:
    return text.replace("MOVED", MOVED).replace("DEVICE", device)


@pytest.mark.parametrize("name", CELLS)
def test_an_idiom_comes_to_the_same(card, name):
    setup, cell = (filled(text, card.device) for text in CELLS[name])
    card.assert_same(setup, cell, COMPARE)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ON_CARDS)
def test_an_idiom_of_cuda_comes_to_the_same(card, name):
    setup, cell = (filled(text, card.device) for text in ON_CARDS[name])
    card.assert_same(setup, cell, COMPARE)


@pytest.mark.gpu
@pytest.mark.parametrize("name", HALF)
def test_half_precision_comes_near(card, name):
    setup, cell = (filled(text, card.device) for text in HALF[name])
    card.assert_same(setup + "model = model.float()\n", cell, COMPARE, tolerance=5e-2)


@pytest.mark.gpu
def test_a_compiled_model_comes_to_the_same(card):
    cell = filled(MADE + "compiled = torch.compile(model)\n" + STEPS.replace("model(inputs)", "compiled(inputs)"), card.device)
    card.assert_same(filled(SETUP, card.device), cell, COMPARE, tolerance=1e-8)


@pytest.mark.gpu
def test_memory_statistics_are_the_engines_own(card):
    cell = (
        MADE
        + STEPS
        + "peak = torch.cuda.max_memory_allocated()\nprint(f'peak {peak}')\nprint(torch.cuda.memory_summary(abbreviated=True)[:20])\n"
    )
    ran = card.run(filled(SETUP, card.device), filled(cell, card.device), "0 < peak < 2**30", 2)
    assert ran["compared"] is True
    assert "peak" in ran["printed"]

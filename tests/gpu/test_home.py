"""Where results are afterwards: on the notebook's card if it has one, and else on the CPU; checkpoints from a card are read without one."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.gpu(on_cpu=True)

SETUP = """
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(48, 6), torch.randn(48, 2)), batch_size=12)
model = nn.Linear(6, 2)
made = None
"""
CELL = """
model.to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for x, y in loader:
    loss = F.mse_loss(model(x.to(device)), y.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
made = {"on the card": torch.arange(3, device=device), "here": torch.arange(3), "loss": loss}
"""
WHERE = (
    "(next(model.parameters()).device.type, optimizer.state[model.weight]['exp_avg'].device.type,"
    " made['on the card'].device.type, made['here'].device.type, made['loss'].device.type)"
)


@pytest.mark.parametrize("engines", [0, 1, 2])
def test_a_notebook_with_the_card_has_results_there(card, engines):
    card.notebook.run(SETUP)
    card.notebook.run((card.line(engines) if engines else "") + CELL)
    assert card.notebook.value(WHERE) == (card.device, card.device, card.device, "cpu", card.device)
    card.notebook.run(CELL)  # plain, with what came home


@pytest.mark.gpu
def test_a_notebook_without_a_card_has_results_on_the_cpu(card):
    card.notebook.run(SETUP)
    card.notebook.run("_available, torch.cuda.is_available = torch.cuda.is_available, lambda: False")
    try:
        card.notebook.run(card.line(2) + CELL)
        assert card.notebook.value(WHERE) == ("cpu",) * 5
        card.notebook.run("device = 'cpu'\n" + CELL)
    finally:
        card.notebook.run("torch.cuda.is_available, device = _available, 'cuda'")


@pytest.mark.gpu
def test_a_notebook_that_says_cpu_trains_on_the_engines_card(card):
    card.notebook.run(SETUP + "device = 'cpu'\nwhere = []")
    card.notebook.run(card.line(2) + CELL + "where.append(str(next(model.parameters()).device))")
    assert card.notebook.value("where") == ["cuda:0"]
    assert card.notebook.value(WHERE) == ("cpu",) * 5
    card.notebook.run("device = 'cuda'")


def test_a_checkpoint_from_the_card_is_read_on_a_cpu(card, new_notebook, monkeypatch):
    card.notebook.run(SETUP)
    options = "--checkpoint-every 2 --name kept"
    card.notebook.run(card.line(2, options) + CELL)
    expected = card.notebook.value("[p.detach().cpu() for p in model.parameters()]")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    other = new_notebook(card.notebook.folder, launched=True)
    other.run("import torch, jupyter_dtrain\nloaded = jupyter_dtrain.load_checkpoint('kept')")
    found = other.value("[p.detach() for p in loaded['model'].parameters()]")
    assert [part.device.type for part in found] == ["cpu", "cpu"]
    for mine, theirs in zip(expected, found, strict=True):
        assert (mine == theirs).all()


@pytest.mark.gpu
def test_one_engine_with_nccl_and_one_alone(new_card):
    card = new_card(1)
    card.notebook.run(SETUP)
    card.notebook.run(
        "%%distribute --engines 1 --strategy none\n"
        "import torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "total = torch.ones(4, device=device)\n"
        "dist.all_reduce(total)\n"
        "backend, total = dist.get_backend(), total.tolist()\n"
        "dist.destroy_process_group()"
    )
    assert card.notebook.value("(backend, total)") == ("nccl", [1.0] * 4)
    card.notebook.run(card.line(1) + CELL)

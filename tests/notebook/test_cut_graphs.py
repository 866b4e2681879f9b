"""A cell's writes make a tensor of the notebook part of a graph, or cut it off: afterwards the notebook's own object says so."""

from __future__ import annotations

import pytest

SETUP = """
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(3, 4096), nn.Tanh(), nn.Linear(4096, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, targets = torch.randn(12, 3), torch.randn(12, 1)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=6)
F.mse_loss(model(inputs), targets).backward()
total, rows = torch.zeros(3), torch.zeros(4, 3)
row = rows[0]
norm, shifted = model[0].weight.norm(), model[0].bias + 1
kept = [total, rows, row, norm, shifted, model[0].weight.grad]
def graphs():
    now = [total, rows, row, norm, shifted, model[0].weight.grad]
    said = [(tensor.requires_grad, tensor.is_leaf, type(tensor.grad_fn).__name__) for tensor in now]
    return said, [a is b for a, b in zip(now, kept)], [round(tensor.sum().item(), 9) for tensor in now]
"""
TRAIN = """
for x, y in loader:
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
"""
WRITES = {
    "a sum of parameters": "total += model[0].bias[:3]",
    "a view": "row += model[0].weight[0]",
    "the tensor of a view": "rows[1] = model[0].weight[0]",
    "a gradient": "model[0].weight.grad.mul_(model[0].weight.norm())",
    "a graph that goes on": "norm *= model[2].bias.norm(); shifted.add_(model[0].bias)",
    "a graph that ends": "norm.detach_(); shifted.detach_()",
    "a leaf that requires a gradient": "total.requires_grad_()",
    "numbers alone": "with torch.no_grad():\n    total += model[0].bias[:3]; norm.mul_(2)",
}


@pytest.mark.parametrize("write", WRITES)
def test_graphs_of_the_notebooks_tensors_are_those_that_the_cell_leaves(notebook, write):
    found = {}
    for first in ("", "%%distribute --engines 2\n"):
        notebook.run(SETUP)
        notebook.run(first + TRAIN + WRITES[write])
        found[first] = [notebook.value("graphs()")]
        notebook.run("optimizer.zero_grad(set_to_none=False)")  # detaches them in place
        found[first].append(notebook.value("graphs()"))
    assert found[""] == found["%%distribute --engines 2\n"]


def test_a_graph_that_the_cell_has_continued_is_not_silently_an_older_one(notebook):
    notebook.run(SETUP + "norm = model[0].weight.norm()")
    notebook.run("%%distribute --engines 2\n" + TRAIN + "norm += model[2].weight.norm()")
    assert "autograd graph is not available here" in notebook.fail("norm.backward()").error[1]


@pytest.mark.parametrize("strategy", ["zero1", "zero3", "pipeline", "tensor"])
def test_gradients_that_span_the_ranks_come_home_as_parts_of_a_graph(notebook, strategy):
    said = "[(p.grad.requires_grad, p.grad.is_leaf) for p in model.parameters()], sum(p.detach().sum().item() for p in model.parameters())"
    write = "\n    for p in model.parameters():\n        p.grad.mul_(p.norm())\nprint([p.grad.requires_grad for p in model.parameters()])"
    found = {}
    for first in ("", f"%%distribute --engines 2 --strategy {strategy}\n"):
        notebook.run(SETUP)
        cell = notebook.run(first + TRAIN.rstrip() + write)
        again = notebook.run(first + "print([p.grad.requires_grad for p in model.parameters()])" + TRAIN)
        found[first] = cell.stdout, again.stdout, notebook.value(said)
    (_, _, plain), (_, _, divided) = found.values()
    assert [printed for *printed, _ in found.values()] == [["[True, True, True, True]\n"] * 2] * 2
    assert plain[0] == divided[0]
    assert plain[1] == pytest.approx(divided[1])

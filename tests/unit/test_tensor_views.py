"""A tensor whose strides or memory a cell has set has the same ones at home, and shares its memory with the same tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from jupyter_dtrain.engine.cell_results import CellResults

# The notebook has, the cell does, a later cell writes, what is compared.
CASES = {
    "a parameter transposed": (
        "m = nn.Sequential(nn.Linear(4, 4)); w = m[0].weight",
        "m[0].weight.data = m[0].weight.data.t(); w.data[0, 1] = 5",
        "w.data[1, 0] = 7",
        "w",
    ),
    "of another shape": ("w = nn.Parameter(torch.rand(2, 3)); v = w.data[0]", "w.data = w.data.t()", "w.data[2, 0] = 7", "w, v"),
    "in place": ("t = torch.rand(3, 3); v = t[0]", "t.t_(); t[1, 0] = 5", "t[2, 0] = 7; v[0] = 1", "t, v"),
    "in place, of another shape": ("t = torch.rand(2, 3); v = t[0]", "t.t_()", "t[2, 0] = 7; v[0] = 1", "t, v"),
    "an unsqueezed one": ("t = torch.rand(3); v = t[1:]", "t.unsqueeze_(0)", "t[0, 2] = 7", "t, v"),
    "by its own part": ("t = torch.rand(4, 3); v = t[1]", "t.data = t.data[1:3]", "t[0, 2] = 7", "t, v"),
    "contiguous": ("t = torch.rand(3, 4).t(); v = t[1]", "t.data = t.data.contiguous()", "t[1, 2] = 7", "t, v"),
    "of another's memory": ("a, b = nn.Parameter(torch.rand(3)), nn.Parameter(torch.rand(3))", "b.data = a.data", "a.data[1] = 7", "a, b"),
    "of another's part": ("a, b = torch.rand(3, 3), torch.rand(3)", "b.data = a[:, 1]; a += 1", "a[1, 1] = 7; b[0] = 9", "a, b"),
    "swapped": ("a, b = torch.rand(3), torch.rand(3); v = a[1:]", "a.data, b.data = b.data, a.data", "b[1] = 7; a[0] = 2", "a, b, v"),
    "a network of another": (
        "m, n = nn.Linear(2, 2), nn.Linear(2, 2)",
        "for p, q in zip(m.parameters(), n.parameters()): q.data = p.data\nm.weight.data += 1",
        "m.weight.data[0, 1] = 7",
        "m.weight, n.weight, m.bias, n.bias",
    ),
    "channels last": (
        "m = nn.Conv2d(2, 3, 2)",
        "m = m.to(memory_format=torch.channels_last); m.weight.data[0] = 1",
        "m.weight.data[0] = 2",
        "m.weight",
    ),
    "another type": ("t = torch.rand(4); v = t[1:]", "t.data = t.data.view(torch.int32)", "t[2] = 7", "t, v"),
    "expanded": ("t = torch.rand(3, 3)", "t.data = t.data[:1].expand(3, 3)", "t[0, 0] = 7", "t"),
    "to new memory": ("t = torch.rand(2, 3); v = t[0]", "t.data = torch.ones(3, 2).t()", "t[0, 0] = 7", "t, v"),
    "enlarged": ("t = torch.rand(3)", "t.resize_(5).fill_(2)", "t[4] = 7", "t"),
    "a buffer": (
        "m = nn.BatchNorm1d(3); r = m.running_mean",
        "m.running_mean.data = m.running_var.data",
        "m.running_var[1] = 7",
        "r, m.running_var",
    ),
    "an array's": ("a = np.zeros((3, 3)); t = torch.from_numpy(a)", "t.t_(); t[0, 1] = 5", "a[2, 0] = 7", "t, a.tolist()"),
    "not at all": ("t = torch.rand(3, 4).t(); v = t[1]", "t += 1", "t[1, 2] = 7", "t, v"),
}
SETUP = "import torch, numpy as np\nfrom torch import nn\ntorch.manual_seed(0)\n"


def told(values: Any) -> Any:
    """Return numbers and strides of tensors."""
    items = values if isinstance(values, tuple) else (values,)
    return [(item.tolist(), item.stride(), item.dtype) if isinstance(item, torch.Tensor) else item for item in items]


@pytest.mark.parametrize("name", CASES)
def test_it_is_as_in_one_process(name, notebook, other_notebook):
    setup, cell, later, compared = CASES[name]
    for one in (notebook, other_notebook):
        one.plain(SETUP + setup)
    other_notebook.plain(cell)
    notebook.distribute(cell)
    assert told(notebook.plain(compared)) == told(other_notebook.plain(compared))
    for one in (notebook, other_notebook):
        one.plain(later)
    assert told(notebook.plain(compared)) == told(other_notebook.plain(compared)), "after another cell"


@pytest.mark.parametrize("name", CASES)
def test_a_process_that_goes_on_has_it(name):
    setup, cell, later, compared = CASES[name]

    def begun() -> tuple[CellResults, dict[str, Any]]:
        namespace: dict[str, Any] = {}
        exec(SETUP + setup, namespace)
        held: list[torch.Tensor | None] = [value for value in namespace.values() if isinstance(value, torch.Tensor)]
        for value in list(namespace.values()):
            if isinstance(value, torch.nn.Module):
                held += [tensor for module in value.modules() for tensor in (*module._parameters.values(), *module._buffers.values())]
        known = {id(obj): obj for obj in held if obj is not None}
        return CellResults(namespace, list(known.values())), namespace

    (lost, before), (goes_on, after) = begun(), begun()
    exec(cell, before)
    saved = lost.save([], gather=lambda tensors: tensors, skip={name: value for name, value in before.items() if name != "m"})
    assert saved is not None
    goes_on.load(saved.packed, device_for=torch.device)
    for namespace in (before, after):
        exec(later, namespace)
    assert told(eval(compared, before)) == told(eval(compared, after))

"""What rank 0 does alone must not need the others: an error at once, with the line, and not a wait for ever."""

from __future__ import annotations

import re
import textwrap

import pytest

from tests.conftest import one_of
from tests.engine.ranks import RankError, run_notebook, run_plain

SETUP = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import jupyter_dtrain as dtrain
from jupyter_dtrain import is_main
loader = DataLoader(TensorDataset(torch.randn(8, 3), torch.randn(8, 1)), batch_size=4)
model = nn.Linear(3, 1)
seen = []

def note(value):
    seen.append(value.item())
"""
WAITS = {
    "if is_main():\n        seen.append(loss.item())": 6,
    "if is_main() and len(seen) < 5:\n        note(loss)": 6,
    "if dtrain.is_main(): print(loss)": 5,
    "seen.append(loss.item() if is_main() else 0)": 5,
    "is_main() and seen.append(float(loss))": 5,
    "if is_main():\n        for _ in range(2):\n            loss.backward(retain_graph=True)": 7,
    "if is_main():\n        dtrain.gather(1)": 6,
}
FINE = [
    "value = loss.item()\n    if is_main():\n        seen.append(value)",
    "if loss.item() < 1e9 and is_main(): seen.append(len(x))",
    "seen.append(loss.item()) if is_main() or True else 0",
    "if not is_main(): pass\n    seen.append(loss.item())",
    "loss.backward()\n    if is_main():\n        seen.append(loss.item())",  # it has come with the gradients
]


def cell(line: str) -> str:
    return textwrap.dedent("""
    for x, y in loader:
        out = model(x)
        loss = (out - y).pow(2).mean()
        LINE
    """).replace("LINE", line)


@pytest.mark.parametrize("line", one_of(3, WAITS))
def test_what_needs_all_ranks_is_an_error_where_one_comes(ranks, line):
    with pytest.raises(RankError) as failed:
        ranks.call(2, run_notebook, SETUP, cell(line), "seen")
    assert re.search(rf"Line {WAITS[line]} needs all engines .* Read the value before the branch", str(failed.value))


@pytest.mark.parametrize("line", FINE)
def test_what_all_ranks_have_may_be_used_there(ranks, line):
    (plain,) = ranks.call(1, run_plain, SETUP, cell(line), "seen")
    first, _ = ranks.call(2, run_notebook, SETUP, cell(line), "seen")
    assert first["compared"] == pytest.approx(plain["compared"], rel=1e-9)

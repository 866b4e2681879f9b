"""`%debug` in JupyterLab after a cell that failed on one rank: its prompt, its answers, and its end."""

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

CELL = """%%distribute --engines 3
import torch.distributed as dist
def check(rank):
    own = rank * 10 + 4
    assert rank != 2, "not this one"
check(dist.get_rank())
"""


def test_the_failed_rank_is_looked_at_in_the_notebooks_own_line(open_lab):
    lab = open_lab("%load_ext jupyter_dtrain", CELL, "%debug", "%%distribute --engines 3\n1 + 1")
    lab.run(0)
    lab.start(1)
    lab.finish(1)
    expect(lab.cell(1)).to_contain_text("not this one")
    lab.start(2)
    shown, line = lab.cell(2).locator(".jp-OutputArea"), lab.cell(2).locator("input.jp-Stdin-input")
    expect(shown).to_contain_text("Post-mortem of rank 2: AssertionError: not this one.")
    for typed, answer in (("p own", "24"), ("up", "<module>"), ("nonsense", "NameError")):
        expect(line).to_have_count(1)  # the one before has become text
        line.fill(typed)
        line.press("Enter")
        expect(shown).to_contain_text(answer)
    expect(line).to_have_count(1)
    line.fill("q")
    line.press("Enter")
    lab.finish(2)
    assert "2" in lab.run(3)

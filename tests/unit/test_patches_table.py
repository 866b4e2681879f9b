"""The table of replaced entry points: nothing is replaced that has no row in it."""

from __future__ import annotations

import builtins
import os
import re
from pathlib import Path

import pytest
import torch
from torch.optim import Adam

from jupyter_dtrain.system import patches
from jupyter_dtrain.system.patches import TABLE, owner_name, patched, patched_items, put, rows_of

ROOT = Path(__file__).parents[2] / "jupyter_dtrain"


def test_nothing_is_replaced_but_through_the_table():
    others = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        if re.search(r"mock\.patch|setattr\((builtins|torch|nn|F|os|io|sys|dist)\b", path.read_text(encoding="utf-8"))
    }
    assert others == {"system/patches.py"}


@pytest.mark.parametrize(
    ("owner", "name"),
    [(os, "mkdir"), (builtins, "open"), (torch.nn.Module, "__call__"), (torch.Tensor, "addmm_"), (torch, "FloatTensor"), (Adam, "step")],
)
def test_rows_of_finds_a_row_by_name_or_pattern(owner, name):
    assert rows_of(owner_name(owner), name)


def test_patched_refuses_what_has_no_row():
    with pytest.raises(AssertionError, match=r"os\.getcwd has no row"):
        patched(os, "getcwd", None)
    with pytest.raises(AssertionError, match=r"os\.getcwd has no row"):
        put(os, "getcwd", None)
    with pytest.raises(AssertionError, match=r"os\.environ\.A has no row"):
        patched_items({}, {"A": 1}, listed="os.environ")


def test_patched_puts_back_what_was_there():
    before = os.mkdir
    with patched(os, "mkdir", print):
        assert vars(os)["mkdir"] is print
    assert os.mkdir is before


def test_each_row_says_why_and_until_when():
    assert all(row.why and not row.why.endswith(".") for row in TABLE)
    scopes = {patches.CELL, patches.CALL, patches.GROUP, patches.ARRIVAL, patches.ENGINE, patches.CONTROLLER}
    assert {row.scope for row in TABLE} == scopes

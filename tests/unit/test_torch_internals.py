"""PyTorch's private names are listed in one place, and are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from jupyter_dtrain.errors import UsageError
from jupyter_dtrain.system import torch_internals
from jupyter_dtrain.system.torch_internals import NAMES, missing, require

ROOT = Path(__file__).parents[2] / "jupyter_dtrain"
_PRIVATE = re.compile(r"(?:^|\.)_[A-Za-z]")


def used(source: str) -> set[str]:
    """Return the private names of PyTorch that `source` uses, dotted."""
    tree, alias, found = ast.parse(source), dict[str, str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and str(node.module).partition(".")[0] == "torch":
            alias.update({one.asname or one.name: f"{node.module}.{one.name}" for one in node.names})
        elif isinstance(node, ast.Import):
            for one in node.names:
                if one.name.partition(".")[0] == "torch":
                    alias[one.asname or "torch"] = one.name if one.asname else "torch"
    found.update(alias.values())
    for node in ast.walk(tree):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name) and node.id in alias:
            found.add(".".join([alias[node.id], *reversed(parts)]))
    return {name for name in found if _PRIVATE.search(name)}


def test_used_reads_imports_and_attributes():
    source = "import torch\nfrom torch.utils import _pytree as pytree\ntorch._C._x.y\npytree.tree_map\ntorch.Tensor.__len__\nself.torch._no"
    assert used(source) == {"torch._C._x.y", "torch._C._x", "torch._C", "torch.utils._pytree", "torch.utils._pytree.tree_map"}


def test_each_private_name_in_the_code_is_listed():
    unlisted = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in ROOT.rglob("*.py")
        for name in used(path.read_text(encoding="utf-8"))
        if not any(name == known or name.startswith(f"{known}.") or known.startswith(f"{name}.") for known in NAMES)
    }
    assert not unlisted, "\n".join(sorted(unlisted))


def test_each_listed_name_is_used():
    code = "".join(path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py") if path.name != "torch_internals.py")
    assert [name for name in NAMES if name.rpartition(".")[2] not in code] == []


def test_the_installed_pytorch_has_them():
    require()
    assert missing() == []


def test_require_says_in_one_sentence_what_is_missing(monkeypatch):
    monkeypatch.setitem(torch_internals.NAMES, "torch._C._of_another_version", "this test")
    monkeypatch.setitem(torch_internals.NAMES, "torch.nn.modules.module._gone.part", "that test")
    with pytest.raises(UsageError, match=r"lacks .*: torch\._C\._of_another_version \(this test\), torch.*_gone\.part \(that test\)\."):
        require()

"""What is added to an error of a cell that found no memory: the plan that would take less."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from jupyter_dtrain.errors import CellError, ClusterError
from jupyter_dtrain.notebook.memory_advice import name_plan
from jupyter_dtrain.parallel_dims import ParallelDims
from jupyter_dtrain.strategies import find
from jupyter_dtrain.system.resources import ON_DEVICE, ON_HOST, PLAN

CELL = "for x, y in loader:\n    nn.functional.cross_entropy(model(x), y).backward()\n    optimizer.step()\n"
LOST = f"The process is probably being killed by the OOM killer. {ON_HOST}\nIts last output:\nlog"


def task(strategy: str = "auto", *, mesh: str = "", spans_hosts: bool = False) -> Any:
    options = SimpleNamespace(mesh=ParallelDims.parse(mesh) if mesh else None)
    engines = 4 if mesh else 2
    return SimpleNamespace(source=CELL, strategy=find(strategy), world_size=engines, device="cpu", options=options, spans_hosts=spans_hosts)


def notebook() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(64, 512), *(nn.Linear(512, 512) for _ in range(6)), nn.Linear(512, 10))
    loader = DataLoader(TensorDataset(torch.randn(64, 64), torch.randint(10, (64,))), batch_size=16)
    return {"nn": nn, "model": model, "optimizer": torch.optim.Adam(model.parameters()), "loader": loader}


@pytest.mark.parametrize("advice", [ON_HOST, ON_DEVICE])
def test_an_error_of_the_cell_names_the_plan(advice):
    error = CellError.of("MemoryError", "", lines=["MemoryError", f"({advice})"], ranks=[0])
    name_plan(error, notebook(), task())
    said = re.search(
        rf"`--strategy zero1` would take (\S+) MiB on each of 2 engines, where auto takes (\S+) MiB\. {PLAN}\)$", error.lines[1]
    )
    assert said is not None, error.lines
    assert float(said[1]) < float(said[2])


def test_what_is_said_of_a_lost_engine_names_it_before_what_that_wrote():
    error = ClusterError(LOST)
    name_plan(error, notebook(), task())
    assert "`--strategy zero1` would take " in str(error)
    assert str(error).endswith(f" {PLAN}\nIts last output:\nlog")


@pytest.mark.parametrize(
    ("namespace", "given", "said"),
    [
        (notebook, {"strategy": "zero1"}, LOST.replace(PLAN, "")),
        (dict, {}, ""),
        (notebook, {"spans_hosts": True}, ""),
        (notebook, {"strategy": "none"}, ""),
        (notebook, {"strategy": "pipeline", "mesh": "dp=2,pp=2"}, ""),
    ],
    ids=["another strategy", "no model", "hosts", "a cell that distributes itself", "a mesh"],
)
def test_where_it_cannot_be_told_the_error_is_as_it_was(namespace, given, said):
    error = ClusterError(LOST)
    name_plan(error, namespace(), task(**given))
    if said:
        assert re.search(r"`--strategy (zero3|pipeline)` would take \S+ MiB on each of 2 engines, where zero1 takes ", str(error))
    else:
        assert str(error) == LOST


def test_another_error_is_not_touched():
    error = ClusterError("The engines have gone.")
    name_plan(error, notebook(), task())
    assert str(error) == "The engines have gone."

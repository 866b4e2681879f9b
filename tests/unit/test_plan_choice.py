"""What `--strategy auto` takes of the plans that there are, and what it says."""

from __future__ import annotations

import ast
import re

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from jupyter_dtrain.errors import UsageError
from jupyter_dtrain.notebook import plan_choice
from jupyter_dtrain.notebook.cell_line import parse_cell_line
from jupyter_dtrain.notebook.plan_choice import chosen
from jupyter_dtrain.planning import memory_plan

CELL = ast.parse("for x, y in loader:\n    nn.functional.cross_entropy(model(x), y).backward()\n    optimizer.step()\n")


def notebook(**others):
    model = nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))
    loader = DataLoader(TensorDataset(torch.randn(64, 64), torch.randint(10, (64,))), batch_size=16)
    return {"model": model, "optimizer": torch.optim.Adam(model.parameters()), "loader": loader} | others


def choose(line: str = "", *, engines: int = 2, **others):
    said: list[str] = []
    names = ["nn", "model", "optimizer", "loader", "other"]
    options = chosen(parse_cell_line(line), CELL, names, notebook(**others), engines=engines, device="cpu", say=said.append)
    return options, said


def test_a_small_model_is_not_looked_at(monkeypatch):
    monkeypatch.setattr(memory_plan, "measure", None)
    options, said = choose()
    assert (options.strategy, options.mesh, said) == ("auto", None, [])


@pytest.mark.parametrize("line", ["--mesh dp=2", "--strategy zero1", "--semantics local", "--launcher mpi"])
def test_what_the_line_says_stays(line, monkeypatch):
    monkeypatch.setattr(plan_choice, "room_for_each", lambda *_, **__: 1)
    options, said = choose(line)
    assert options == parse_cell_line(line)
    assert not said


def test_data_parallel_is_taken_where_it_fits():
    options, said = choose("--memory-limit 1G")
    assert (options.strategy, said) == ("auto", [])


def test_the_fastest_that_fits_is_taken_where_data_parallel_does_not():
    options, said = choose("--memory-limit 6M")
    (text,) = said
    sentence, _, shown = text.partition("\n\n")
    assert re.match(
        rf"`--strategy auto` takes --strategy {options.strategy}: \d\.\d MiB of 6\.0 MiB for each of 2 engines; "
        r"auto would take \d\.\d MiB, and this is the fastest",
        sentence,
    )
    rows = [line.split() for line in shown.splitlines()[1:]]
    fitting = {row[1]: row for row in rows if row[0] == "2" and row[3] == "MiB" and float(row[2]) * 1.15 <= 6}
    assert "auto" not in fitting
    assert options.strategy in fitting
    assert options.memory_limit is None


def test_of_four_engines_a_mesh_may_be_taken(monkeypatch):
    only = {"dp=2,tp=2"}
    plans = memory_plan.choice
    monkeypatch.setattr(
        memory_plan, "choice", lambda found, *of: plans([p for p in found if not p.strategy.divides or p.name in only], *of)
    )
    options, (text,) = choose("--memory-limit 5M", engines=4)
    assert text.startswith("`--strategy auto` takes --mesh dp=2,tp=2: ")
    assert (str(options.mesh), options.strategy, options.cluster.num_engines) == ("dp=2,tp=2", "tensor", 4)


def test_where_nothing_fits_the_error_says_what_the_smallest_needs():
    with pytest.raises(
        UsageError, match=r"--memory-limit: None has room: --strategy \w+ takes least, \d.* for each of 2 engines and 15% more"
    ):
        choose("--memory-limit 1M")


def test_nothing_is_refused_by_an_estimate_of_the_machine(monkeypatch):
    monkeypatch.setattr(plan_choice, "room_for_each", lambda *_, **__: 1 << 20)
    options, (text,) = choose()
    assert options.strategy != "auto"
    assert "None has room" in text


def test_what_other_options_need_is_not_given_up():
    options, (text,) = choose("--memory-limit 6M --checkpoint-activations")
    assert "tensor" not in text, "which knows no checkpoints of activations"
    assert options.checkpoint_activations


def test_what_cannot_be_planned_is_said_and_run_as_ever():
    options, (text,) = choose("--memory-limit 1M", loader=[])
    assert options.strategy == "auto"
    assert "no plan can be made" in text
    assert "DataLoader" in text


@pytest.mark.parametrize("line", ["--memory-limit 1G --strategy zero1", "--memory-limit 1G --mesh dp=2", "--memory-limit 1G --vary lr=1,2"])
def test_a_limit_is_for_auto_alone(line):
    with pytest.raises(UsageError, match="--memory-limit is for --strategy auto"):
        parse_cell_line(line)


@pytest.mark.parametrize(("text", "size"), [("16G", 16 << 30), ("1.5m", 3 << 19), ("64 KiB", 64 << 10), ("1TB", 1 << 40)])
def test_a_limit_is_given_as_people_write_it(text, size):
    assert parse_cell_line(f"--memory-limit '{text}'").memory_limit == size


@pytest.mark.parametrize("text", ["0G", "16", "much"])
def test_a_limit_that_is_none_is_refused(text):
    with pytest.raises(UsageError, match="no amount of memory"):
        parse_cell_line(f"--memory-limit {text}")

"""The comparison with other ways to train: its jobs train, and its table says what was measured."""

import ast
import json
from typing import Any

import pytest

from bench.contenders import Timing
from bench.jobs import IMPORTS, STAMPS, jobs
from bench.report import picture, table

QUICK = {job.name: job for job in jobs(quick=True)}


@pytest.mark.parametrize("name", QUICK)
def test_a_job_trains_in_a_plain_cell(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = QUICK[name]
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(IMPORTS + job.setup, namespace)
    before = [parameter.detach().clone() for parameter in namespace["model"].parameters()]
    exec(job.cell, namespace)
    assert len(json.loads(STAMPS.read_text())) == job.steps
    assert all((old != new).any() for old, new in zip(before, namespace["model"].parameters(), strict=True))


@pytest.mark.parametrize("quick", [True, False])
def test_every_form_of_a_job_has_the_same_global_batch(quick):
    for job in jobs(quick=quick):
        for source in (job.cell, job.by_hand, job.script, job.for_accelerate):
            ast.parse(source)
            assert f"batch_size={job.batch_size}" in source
            assert f"islice(loader, {job.steps})" in source


def test_the_table_has_ratios_within_a_round():
    rounds: dict[str, list[Timing | None]] = {
        "ours": [Timing(1.0, 30.0, 2.0), Timing(3.0, 20.0, 4.0)],
        "theirs": [None, None],
        "torchrun": [Timing(10.0, 20.0, 12.0), Timing(12.0, 20.0, 13.0)],
    }
    lines = table("a job", rounds).splitlines()
    assert lines[4] == "| ours | 2 (1–3) | 0.175 (0.1–0.25) | 25 (20–30) | 1.25 (1–1.5) | 3 (2–4) |"
    assert lines[5] == "| theirs | failed | | | | |"


def test_the_same_figures_make_the_same_picture(tmp_path):
    rounds = {"ours": [Timing(1.0, 30.0, 2.0)], "torchrun": [Timing(10.0, 20.0, 12.0)]}
    for name in ("one.svg", "two.svg"):
        picture({"a job": rounds}, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()

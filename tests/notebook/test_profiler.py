"""A cell under PyTorch's profiler: its tables and traces are there in the next cell, and each file once."""

from __future__ import annotations

import json

import pytest

SETUP = """
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule, tensorboard_trace_handler
model = nn.Linear(6, 1)
x = torch.randn(24, 6)
"""
STEPS = """
    for rows in x.split(4):
        with record_function("my own part"):
            model(rows).sum().backward()
        prof.step()
"""
NAMES = "{event.key for event in prof.key_averages()}"


@pytest.fixture
def prepared(notebook):
    notebook.run(SETUP)
    return notebook


def num_events(path):
    return len(json.loads(path.read_text())["traceEvents"])


def test_the_recipe_of_the_documentation(prepared):
    notebook = prepared
    taken = f"with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:{STEPS}"
    shown = notebook.run(f"%%distribute --engines 2 --replicate\n{taken}print(prof.key_averages().table(sort_by='cpu_time_total'))").stdout
    assert notebook.value("prof.key_averages().table(sort_by='cpu_time_total')") in shown
    (own,) = (event for event in notebook.value("[(event.key, event.count) for event in prof.key_averages()]") if event[0] == "my own part")
    assert own == ("my own part", 6)
    assert "[[4, 6]" in notebook.value("str([event.input_shapes for event in prof.events()])")
    notebook.run("prof.export_chrome_trace('home.json')")
    assert num_events(notebook.folder / "home.json") > 6

    # And it goes along again.
    assert notebook.run(f"%%distribute --engines 2\nprint('my own part' in {NAMES})").stdout == "True\n"


def test_traces_that_the_cell_exports_are_one_file_each(prepared):
    notebook = prepared
    cycles = "schedule=schedule(wait=1, warmup=1, active=1), on_trace_ready=tensorboard_trace_handler('traces')"
    notebook.run(f"%%distribute --engines 2 --replicate\nwith profile({cycles}) as prof:{STEPS}")
    assert len(list((notebook.folder / "traces").glob("*.json"))) == 2
    notebook.run(f"%%distribute --engines 2 --replicate\nwith profile() as prof:{STEPS}prof.export_chrome_trace('cell.json')")
    assert num_events(notebook.folder / "cell.json") > 6
    notebook.run(
        f"%%distribute --engines 2 --replicate\nwith torch.autograd.profiler.profile() as prof:{STEPS.replace('prof.step()', 'pass')}"
    )
    assert notebook.value(f"'my own part' in {NAMES}")


def test_a_profile_of_the_notebook_goes_along_and_stays_whole(prepared):
    notebook = prepared
    notebook.run(f"with profile(activities=[ProfilerActivity.CPU]) as prof:{STEPS}")
    assert notebook.run(f"%%distribute --engines 2\nprint('my own part' in {NAMES})").stdout == "True\n"
    assert notebook.value(f"'my own part' in {NAMES}")
    notebook.run("prof.export_chrome_trace('own.json')")
    assert num_events(notebook.folder / "own.json") > 6

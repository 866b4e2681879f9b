"""Devices that the notebook names mean the rank's own on the engine, and are the notebook's again afterwards."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from jupyter_dtrain.engine.arrival.objects import DeviceNames
from jupyter_dtrain.notebook.results import home_gpu

CUDA, CPU = torch.device("cuda:0"), torch.device("cpu")


def test_a_notebook_with_a_gpu_on_engines_without(notebook):
    notebook.names["torch"] = torch
    notebook.plain("""
    from dataclasses import dataclass
    device, other, text = torch.device("cuda:1"), torch.device("cuda"), "cuda:0"
    config = {"device": "cuda", "steps": 0, "backend": "cuda"}

    class CFG:
        device = "cuda:0"

    @dataclass
    class Arguments:
        device: str = "cuda"
        where: torch.device = torch.device("cuda:3")

    @dataclass(slots=True)
    class Fixed:
        device: str = "cuda"

    arguments, fixed = Arguments(), Fixed()

    def to_device(x, where=torch.device("cuda:2")):
        return x.to(where)
    """)
    before = {name: notebook.names[name] for name in ("device", "other", "text", "config", "arguments")}
    found = notebook.distribute("""
    config["steps"] += 1
    made = torch.ones(1, device=device)
    also = device
    of_objects = CFG.device, arguments.device, arguments.where, fixed.device
    [str(x) for x in (device, other, text, config["device"], config["backend"], *of_objects, to_device(made).device)]
    """)
    assert found == ["cpu", "cpu", "cpu", "cpu", "cuda", "cpu", "cpu", "cpu", "cpu", "cpu"]
    assert all(notebook.names[name] is value for name, value in before.items())
    assert notebook.names["config"] == {"device": "cuda", "steps": 1, "backend": "cuda"}
    assert notebook.names["arguments"].device == notebook.names["fixed"].device == "cuda"
    assert notebook.names["CFG"].device == "cuda:0"
    assert notebook.names["also"] == torch.device("cuda:1")  # the notebook's, though the cell read the rank's


def test_what_the_cell_assigns_stays_assigned(notebook):
    notebook.names.update(device="cuda", config={"device": "cuda:0"})
    notebook.distribute("device, config['device'] = 'cpu', 'mine'")
    assert (notebook.names["device"], notebook.names["config"]) == ("cpu", {"device": "mine"})


@pytest.mark.parametrize("value", ["cpu", CPU], ids=["text", "device"])
def test_a_notebook_without_a_gpu_on_ranks_with_one(value):
    options = SimpleNamespace(device=value, dev=value, kind="cpu")
    names = {"device": value, "DEVICE": value, "eval_device": value, "cpu": value, "options": options}
    devices = DeviceNames(names, [options], CUDA)
    assert devices.from_cpu
    with devices.in_place():
        assert [str(names[name]) for name in ("device", "DEVICE", "eval_device", "cpu")] == ["cuda:0"] * 3 + ["cpu"]
        assert [str(item) for item in (options.device, options.dev, options.kind)] == ["cuda:0", "cuda:0", "cpu"]
        assert type(names["device"]) is type(value)
    assert (names["device"], options.device) == (value, value)


def test_what_the_notebook_has_on_the_cpu_beside_its_gpu_stays_there():
    names = {"device": CUDA, "host_device": "cpu"}
    devices = DeviceNames(names, [CUDA], CUDA)
    with devices.in_place():
        assert names == {"device": CUDA, "host_device": "cpu"}
    assert not devices.from_cpu


def test_a_notebook_that_names_no_device_stays_on_the_cpu():
    model = nn.Linear(2, 1)
    devices = DeviceNames({"model": model}, [model], CUDA)
    devices.move_models()
    assert not devices.from_cpu
    assert model.weight.device == CPU


def test_on_ranks_without_a_gpu_nothing_is_done_for_a_notebook_without_one():
    names = {"device": "cpu"}
    with DeviceNames(names, [], CPU).in_place():
        assert names == {"device": "cpu"}


@pytest.mark.gpu
def test_models_and_their_optimizers_move():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    DeviceNames({"device": "cpu"}, [model, optimizer], CUDA).move_models()
    assert model.weight.is_cuda
    assert model.weight.grad is not None
    assert model.weight.grad.is_cuda
    assert optimizer.state[model.weight]["exp_avg"].is_cuda
    model(torch.ones(1, 2, device=CUDA)).sum().backward()
    optimizer.step()


def test_where_results_come_home_to(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert home_gpu([torch.device("cuda:1")], from_cpu=False) == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert home_gpu([torch.ones(1)], from_cpu=False) == torch.device("cuda")
    assert home_gpu([CPU, torch.device("cuda:1"), CUDA], from_cpu=False) == torch.device("cuda:1")
    assert home_gpu([torch.ones(1)], from_cpu=True) == CPU

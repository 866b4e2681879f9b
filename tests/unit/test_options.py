"""Options validate themselves: what they accept, and what they say otherwise."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from datetime import timedelta
from types import SimpleNamespace

import pytest

from jupyter_dtrain.cluster.hosts.doctor import examine
from jupyter_dtrain.cluster_options import ClusterOptions
from jupyter_dtrain.elastic.job import CellJob
from jupyter_dtrain.errors import UsageError
from jupyter_dtrain.options import RunOptions


def test_defaults():
    options = RunOptions()
    assert options.cluster.num_engines is None
    assert options.cluster.device == "auto"
    assert options.cluster.start_timeout == timedelta(minutes=2)
    assert options.name is None


@pytest.mark.parametrize("num_engines", [1, 2, 512])
def test_any_number_of_engines_from_one_up(num_engines):
    assert ClusterOptions(num_engines=num_engines).num_engines == num_engines


@pytest.mark.parametrize("num_engines", [0, -3])
def test_no_fewer_than_one_engine(num_engines):
    with pytest.raises(UsageError, match=rf"^--engines {num_engines}: a cluster has at least one engine; give a number from 1 up\.$"):
        ClusterOptions(num_engines=num_engines)


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda"])
def test_known_devices(device):
    assert ClusterOptions(device=device).device == device


@pytest.mark.parametrize("device", ["gpu", "cuda:0", "CPU", ""])
def test_an_unknown_device_names_the_known(device):
    with pytest.raises(UsageError, match=rf"^--device {device}: choose auto, cpu or cuda\.$"):
        ClusterOptions(device=device)


@pytest.mark.parametrize(("devices", "said"), [("own", "exclusive or shared."), ("2", "exclusive or shared. `--engines 2` says how many")])
def test_unknown_devices_name_the_known(devices, said):
    with pytest.raises(UsageError, match=rf"^--devices {devices}: choose {said}"):
        ClusterOptions(devices=devices)


def test_options_are_keyword_only_and_frozen():
    with pytest.raises(TypeError):
        ClusterOptions(2)  # type: ignore[call-arg]
    options = RunOptions(name="first")
    with pytest.raises(FrozenInstanceError):
        options.name = "second"  # type: ignore[misc]


def test_a_run_is_recorded_with_all_of_them_that_are_not_about_what_is_shown():
    options = RunOptions(split=("x", "y"), split_inputs=True, split_eval=True, checkpoint_every=timedelta(minutes=10), keep_checkpoints=3)
    recorded = CellJob.arguments(SimpleNamespace(options=options, sweep=None))  # type: ignore[arg-type]  # it needs no more
    shown = {"cluster", "name", "preview", "output", "view"}
    assert set(recorded) == {"engines", "device", "devices", "sweep"} | {field.name for field in fields(RunOptions)} - shown
    assert (recorded["split"], recorded["split_inputs"], recorded["split_eval"]) == ("x,y", True, True)
    assert (recorded["checkpoint_every"], recorded["keep_checkpoints"]) == ("600s", 3)


@pytest.mark.parametrize(("options", "said"), [({}, "Name them with --hosts"), ({"launcher": "local"}, "--launcher local uses none")])
def test_the_doctor_needs_hosts(options, said):
    with pytest.raises(UsageError, match=said):
        examine(ClusterOptions(**options), on_progress=print)

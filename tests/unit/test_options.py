"""Options validate themselves: what they accept, and what they say otherwise."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import timedelta

import pytest

from jupyter_dtrain.errors import UsageError
from jupyter_dtrain.options import ClusterOptions, RunOptions


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


def test_options_are_keyword_only_and_frozen():
    with pytest.raises(TypeError):
        ClusterOptions(2)  # type: ignore[call-arg]
    options = RunOptions(name="first")
    with pytest.raises(FrozenInstanceError):
        options.name = "second"  # type: ignore[misc]

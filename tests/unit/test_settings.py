"""Settings of libraries, as they are read in one process and made in another."""

import decimal
import gc
import os
import pickle
import sys
import warnings

import matplotlib
import numpy as np
import pandas
import pytest
import torch
from IPython.core.getipython import get_ipython
from torch.distributions import Distribution

from jupyter_dtrain.capture.settings import changes, make_settings, settings_now
from jupyter_dtrain.protocol import HOST_VARIABLE


@pytest.fixture(autouse=True)
def made_again(monkeypatch):
    """Make the settings of this process again at the end."""
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # it is set anew for each part of a test
    found = settings_now()
    yield
    make_settings(found)


def test_all_are_known_and_can_be_sent():
    before = settings_now()
    assert {"torch.set_printoptions", "numpy.set_printoptions", "warnings.filters", "os.environ"} < before.keys()
    assert {"matplotlib.rcParams", "matplotlib.use", "matplotlib.figure_formats", "pandas.set_option"} < before.keys()  # imported here
    assert len({name for name in before if not name.startswith(("IPython.", "distributed.", "mlflow.", "wandb."))}) == 30
    assert ("IPython.%cd" in before) == (get_ipython() is not None)
    assert pickle.loads(pickle.dumps(before)) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda: torch.set_printoptions(precision=2, sci_mode=True),
        lambda: torch.set_default_device("meta"),
        lambda: np.set_printoptions(precision=3, suppress=True),
        lambda: torch.autograd.set_detect_anomaly(True, check_nan=False),
        lambda: np.seterr(divide="raise"),
        lambda: decimal.setcontext(decimal.Context(prec=5, rounding=decimal.ROUND_UP, traps=[decimal.Inexact])),
        lambda: setattr(sys, "argv", ["train.py", "--lr", "0.1"]),
        lambda: setattr(torch.backends.cudnn, "benchmark", True),
        lambda: setattr(torch.backends.cudnn, "enabled", False),
        lambda: setattr(torch.backends.cudnn, "allow_tf32", False),
        lambda: setattr(torch.backends.cudnn.rnn, "fp32_precision", "ieee"),
        lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
        lambda: setattr(torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
        lambda: torch.backends.cuda.enable_flash_sdp(False),
        lambda: Distribution.set_default_validate_args(not Distribution._validate_args),  # torch.compile may have switched it off before
        gc.disable,
        lambda: gc.set_threshold(900, 9, 9),
        lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 1),
        lambda: sys.setrecursionlimit(900),
        lambda: pandas.set_option("display.precision", 2),
        lambda: matplotlib.rcParams.update({"axes.grid": True, "figure.figsize": (3, 2)}),
        lambda: matplotlib.use("svg"),
        lambda: warnings.filterwarnings("ignore", "of this kind", UserWarning),
    ],
)
def test_a_setting_is_made_elsewhere_and_taken_back(change):
    before = settings_now()
    change()
    there = settings_now()
    (name,) = changes(before, there)
    make_settings(before)
    assert changes(before, settings_now()) == {}
    make_settings({name: there[name]})
    assert changes(there, settings_now()) == {}


def test_a_recursion_limit_leaves_room_for_running_a_cell():
    make_settings({"sys.setrecursionlimit": 10})
    assert 300 < sys.getrecursionlimit() < 900


def test_of_the_environment_only_what_is_new_comes_home(monkeypatch):
    monkeypatch.setenv("GOES", "1")
    before = settings_now()
    monkeypatch.setenv("FOUND", "1")
    monkeypatch.delenv("GOES")
    monkeypatch.setenv("RANK", "3")
    new = changes(before, settings_now())
    assert list(new.values()) == [{"FOUND": "1", "GOES": None}]
    make_settings(before)
    assert (os.environ.get("FOUND"), os.environ["GOES"], os.environ["RANK"]) == (None, "1", "3")
    make_settings(new)
    assert (os.environ["FOUND"], os.environ.get("GOES"), os.environ["RANK"]) == ("1", None, "3")


def test_what_an_engine_of_another_host_had_leaves_this_ones_own_variables(monkeypatch):
    monkeypatch.setenv("SLURM_CONF", "here")
    monkeypatch.setenv("NOTEBOOKS", "1")
    with monkeypatch.context() as there:
        there.setenv(HOST_VARIABLE, "h1")
        there.setenv("SLURM_CONF", "there")
        there.delenv("NOTEBOOKS")
        there.setenv("CELLS", "2")
        settings = settings_now()
    before = dict(os.environ)
    make_settings(settings)
    assert dict(os.environ) == {**{name: value for name, value in before.items() if name != "NOTEBOOKS"}, "CELLS": "2"}

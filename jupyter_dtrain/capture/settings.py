"""Settings of libraries that a notebook makes once and that a cell's results or what it prints depend on.

Each is read and made by functions of its library. Of libraries that need not be there, what differs from their defaults counts.
"""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..integrations import dask, mlflow, wandb
from ..integrations.matplotlib import figure_formats, set_figure_formats
from ..system.interpreter import unwarned

_OF_THE_PROCESS = (
    *("CUDA_", "GLIBC_", "GLOO_", "GROUP_", "HIP_", "IPP_", "IPYTHON", "JPY_", "JUPYTER", "LOCAL_", "MALLOC_"),
    *("MASTER_", "MKL_", "MPLBACKEND", "NCCL_", "NVIDIA_", "OMP_", "OPENBLAS_", "PYTHON", "RANK", "ROCR_", "ROLE_"),
    *("TORCHELASTIC_", "TORCH_CPP_", "TP_", "WORLD_SIZE"),
)
"""Beginnings of the environment variables that an engine has values of its own for."""


@dataclass(frozen=True)
class _Setting:
    get: Callable[[], Any]
    set: Callable[[Any], object]


def settings_now() -> dict[str, Any]:
    """Return the settings of this process by name; what cannot be sent is left out."""
    found: dict[str, Any] = {}
    for name, setting in _SETTINGS.items():
        with suppress(Exception):  # a library of another version than these functions know
            value = setting.get()
            pickle.dumps(value)
            found[name] = value
    return found


def make_settings(settings: Mapping[str, Any]) -> None:
    """Make `settings` those of this process, where they are not."""
    now = settings_now()
    for name, value in settings.items():
        if name in _SETTINGS and now.get(name) != value:
            with suppress(Exception):
                _SETTINGS[name].set(value)


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes `after` of `before`; of the environment single variables, as the other process has some of its own."""
    found = {name: value for name, value in after.items() if before.get(name) != value}
    if ENVIRONMENT in found:
        old, new = before.get(ENVIRONMENT, {}), found.pop(ENVIRONMENT)
        found[SOME_OF_IT] = {name: new.get(name) for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    return found


def _torch_printing() -> dict[str, Any]:
    return dict(vars(torch._tensor_str.PRINT_OPTS))


def _numpy_printing() -> dict[str, Any]:
    return {key: value for key, value in np.get_printoptions().items() if key != "override_repr"}


def _flag(owner: Any, name: str) -> _Setting:
    return _Setting(lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


ENVIRONMENT, SOME_OF_IT = "os.environ", "os.environ.update"


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_OF_THE_PROCESS)}


def _set_environment(variables: Mapping[str, str]) -> None:
    _update_environment({**dict.fromkeys(_environment()), **variables})


def _update_environment(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _warning_filters() -> list[tuple[str, str, tuple[str, str], str, int]]:
    """Return the filters of warnings in the words of ``warnings.filterwarnings``, categories by name: not each process has them all."""
    filters: list[tuple[Any, ...]] = list(warnings.filters)
    return [
        (action, _text(message), (kind.__module__, kind.__qualname__), _text(module), line)
        for action, message, kind, module, line in filters
    ]


def _text(pattern: Any) -> str:
    return getattr(pattern, "pattern", pattern) or ""  # Python's own filters have texts


def _set_warning_filters(filters: Sequence[tuple[Any, str, tuple[str, str], str, int]]) -> None:
    warnings.resetwarnings()
    for action, message, (module, name), where, line in filters:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None:
            warnings.filterwarnings(action, message, kind, where, line, append=True)


def _pandas_options() -> dict[str, Any]:
    config = sys.modules.get("pandas._config.config")
    if config is None:
        return {}
    with unwarned():  # of options that will go
        values = {key: (config.get_option(key), option.defval) for key, option in config._registered_options.items()}
    return {key: value for key, (value, default) in values.items() if value != default}


def _set_pandas_options(options: Mapping[str, Any]) -> None:
    pandas = importlib.import_module("pandas")
    for key in _pandas_options().keys() - options.keys():
        pandas.reset_option(key)
    for key, value in options.items():
        pandas.set_option(key, value)


_OF_A_WINDOW = frozenset({"backend", "backend_fallback", "interactive", "toolbar", "savefig.directory"})


def _matplotlib_parameters() -> dict[str, Any]:
    matplotlib = sys.modules.get("matplotlib")
    if matplotlib is None:
        return {}
    default = matplotlib.rcParamsDefault
    return {key: value for key, value in dict.items(matplotlib.rcParams) if key not in _OF_A_WINDOW and value != dict.get(default, key)}


def _set_matplotlib_parameters(parameters: Mapping[str, Any]) -> None:
    matplotlib = importlib.import_module("matplotlib")
    for key in _matplotlib_parameters().keys() - parameters.keys():
        matplotlib.rcParams[key] = matplotlib.rcParamsDefault[key]
    matplotlib.rcParams.update(parameters)


def _figures_drawn_by() -> str | None:
    """Return what draws figures, where the notebook has chosen it and it needs no window; ``None``: what the environment says."""
    matplotlib = sys.modules.get("matplotlib")
    if matplotlib is None:
        return None
    chosen = _short(dict.get(matplotlib.rcParams, "backend"))
    return chosen if chosen in _WITHOUT_A_WINDOW and chosen != _short(_usual_backend()) else None


def _draw_figures_by(backend: str | None) -> None:
    importlib.import_module("matplotlib").use(backend or _usual_backend())


def _usual_backend() -> str:
    return os.environ.get("MPLBACKEND", "agg")


def _short(backend: Any) -> str:
    return str(backend).lower().removeprefix("module://matplotlib_inline.backend_")


_WITHOUT_A_WINDOW = frozenset({"inline", "agg", "svg", "pdf", "ps", "cairo"})

_SETTINGS = {
    "torch.set_printoptions": _Setting(_torch_printing, lambda options: vars(torch._tensor_str.PRINT_OPTS).update(options)),
    "torch.set_float32_matmul_precision": _Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "torch.autograd.set_detect_anomaly": _Setting(
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()), lambda both: torch.set_anomaly_enabled(*both)
    ),
    "torch.backends.cudnn.benchmark": _flag(torch.backends.cudnn, "benchmark"),
    "torch.backends.cudnn.deterministic": _flag(torch.backends.cudnn, "deterministic"),
    # torch.compile switches it off, for the rest of the process: not each engine need have been in that cell.
    "torch.distributions": _flag(torch.distributions.Distribution, "_validate_args"),
    "numpy.set_printoptions": _Setting(_numpy_printing, lambda options: np.set_printoptions(**options)),
    "numpy.seterr": _Setting(np.geterr, lambda kinds: np.seterr(**kinds)),
    "sys.argv": _flag(sys, "argv"),  # what argparse takes where it is given nothing
    # Where a cell runs there are frames below it that the notebook does not have.
    "sys.setrecursionlimit": _Setting(sys.getrecursionlimit, lambda limit: sys.setrecursionlimit(max(limit, sys.getrecursionlimit()))),
    "warnings.filters": _Setting(_warning_filters, _set_warning_filters),
    ENVIRONMENT: _Setting(_environment, _set_environment),
    SOME_OF_IT: _Setting(dict, _update_environment),
    "pandas.set_option": _Setting(_pandas_options, _set_pandas_options),
    "matplotlib.rcParams": _Setting(_matplotlib_parameters, _set_matplotlib_parameters),
    "matplotlib.use": _Setting(_figures_drawn_by, _draw_figures_by),
    "InlineBackend.figure_formats": _Setting(figure_formats, set_figure_formats),
    dask.NAME: _Setting(dask.present_cluster, dask.join_cluster),
    mlflow.NAME: _Setting(mlflow.active_runs, mlflow.set_active_runs),
    wandb.NAME: _Setting(wandb.open_run, wandb.join_run),  # which the environment says how to reach
}

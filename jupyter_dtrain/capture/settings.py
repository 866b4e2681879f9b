"""Library settings on which a cell's results or output depend.

Each is read and set by functions of its library. Those of optional libraries are in `integrations/`; of these, only values other than
their defaults are sent.
"""

from __future__ import annotations

import decimal
import gc
import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from traceback import walk_stack
from typing import Any

import numpy as np
import torch
from torch.utils.hooks import RemovableHandle

from ..integrations.base import Setting
from ..integrations.registry import KNOWN, be_told, look, of_others, setting_named, settings_of_libraries
from ..protocol import HOST_VARIABLE
from ..system.interpreter import unwarned
from .shell_state import set_visited, visited
from .warning_filters import set_warning_filters, warning_filters

_OF_THE_PROCESS = (
    *("CUDA_", "GLIBC_", "GLOO_", "GROUP_", "HIP_", "IPP_", "IPYTHON", "JPY_", "JUPYTER", "LOCAL_", "MALLOC_"),
    *("MASTER_", "MKL_", "MPLBACKEND", "NCCL_", "NVIDIA_", "OMP_", "OPENBLAS_", "PYTHON", "RANK", "ROCR_", "ROLE_"),
    *("TORCHELASTIC_", "TORCH_CPP_", "TP_", "WORLD_SIZE"),
)
"""Prefixes of environment variables of which an engine has its own values."""
_OF_A_HOST = ("HOME", "HOSTNAME", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "PWD", "SHELL", "SHLVL", "TMPDIR", "USER", "VIRTUAL_ENV", "_")
_OF_ITS_JOBS = ("KUBERNETES_", "LSB_", "OMPI_", "PBS_", "PMI", "SGE_", "SLURM_", "SSH_", "XDG_")
"""Variables, and prefixes of variables, of which an engine on another host has its own values as well."""


def settings_now(*, of_libraries: bool = True) -> dict[str, Any]:
    """Return the settings of this process by name, without unpicklable ones; `of_libraries`: also those of optional libraries."""
    look()
    found: dict[str, Any] = {}
    for name, setting in {**_SETTINGS, **(settings_of_libraries() if of_libraries else {})}.items():
        with suppress(Exception):  # the library's version may not match these functions
            value = setting.get()
            pickle.dumps(value)
            found[name] = value
    return found


def make_settings(settings: Mapping[str, Any]) -> None:
    """Apply `settings` to this process where they differ.

    A complete set, unlike changes, lists the integrations (`KNOWN`). Optional libraries that it does not mention get their defaults.
    """
    if KNOWN in settings:
        be_told(settings[KNOWN])  # before any setting is looked up by name
        defaults = {name: setting.default for name, setting in settings_of_libraries().items() if name not in settings}
        settings = {**settings, **defaults}
    now = settings_now()
    for name, value in settings.items():
        setting = _setting(name)
        if setting is not None and now.get(name, setting.default) != value:
            with suppress(Exception):
                setting.set(value)


def of_other_ranks(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return `settings` for ranks other than 0."""
    return {
        name: value if (setting := _setting(name)) is None or setting.of_other_ranks is None else setting.of_other_ranks(value)
        for name, value in settings.items()
    }


def _setting(name: str) -> Setting | None:
    return _SETTINGS.get(name) or setting_named(name)


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that turn `before` into `after`; of the environment single variables, as the other process has its own ones."""
    found: dict[str, Any] = {}
    for name, value in after.items():
        setting = _setting(name)
        if before.get(name, None if setting is None else setting.default) != value:
            found[name] = value
    if ENVIRONMENT in found:
        old, new = before.get(ENVIRONMENT, {}), found.pop(ENVIRONMENT)
        found[SOME_OF_IT] = {name: new.get(name) for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    return found


def _torch_printing() -> dict[str, Any]:
    return dict(vars(torch._tensor_str.PRINT_OPTS))


def _numpy_printing() -> dict[str, Any]:
    return {key: value for key, value in np.get_printoptions().items() if key != "override_repr"}


def _set_default_device(kind: str) -> None:
    """Let tensors be made on a device of this kind: a rank's own GPU, or the CPU where this process has none."""
    has_it = kind != "cuda" or torch.cuda.is_available()
    torch.set_default_device(kind if has_it and kind != "cpu" else None)


def _set_cudnn_precision(of_both: tuple[str, str]) -> None:
    if len(set(of_both)) == 1:
        with unwarned():  # the older word for both, which raises where it says something else
            _CUDNN.allow_tf32 = of_both[0] == "tf32"
    _CUDNN.conv.fp32_precision, _CUDNN.rnn.fp32_precision = of_both


def _set_attention(enabled: Sequence[bool]) -> None:
    for kernel, is_enabled in zip(_ATTENTION, enabled, strict=True):
        getattr(torch.backends.cuda, f"enable_{kernel}_sdp")(is_enabled)


def _decimal_context() -> tuple[Any, ...]:
    now = decimal.getcontext()
    return (
        now.prec,
        now.rounding,
        now.Emin,
        now.Emax,
        now.capitals,
        now.clamp,
        [kind.__name__ for kind, is_on in now.traps.items() if is_on],
    )


def _set_decimal_context(values: tuple[Any, ...]) -> None:
    prec, rounding, least, largest, capitals, clamp, names = values
    traps = [getattr(decimal, name) for name in names]
    decimal.setcontext(decimal.Context(prec, rounding, least, largest, capitals, clamp, [], traps))


def _set_next_hook(number: int) -> None:
    RemovableHandle.next_id = max(number, RemovableHandle.next_id)


def _set_recursion_limit(limit: int) -> None:
    """Set the limit; this process may need more than another one, as there are more frames below an engine's cell."""
    depth = sum(1 for _ in walk_stack(None))
    sys.setrecursionlimit(max(limit, depth + _FRAMES))


_FRAMES = 300  # those that running a cell needs beside the cell's own
_CUDNN: Any = torch.backends.cudnn
_ATTENTION = ("flash", "mem_efficient", "math", "cudnn")


def _flag(owner: Any, name: str) -> Setting:
    return Setting(lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


ENVIRONMENT, SOME_OF_IT = "os.environ", "os.environ.update"


def _environment() -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if not _is_own(name)}
    return {**found, HOST_VARIABLE: ""} if HOST_VARIABLE in os.environ else found


def _is_own(name: str) -> bool:
    return name.startswith(_OF_THE_PROCESS) or (HOST_VARIABLE in os.environ and _is_of_host(name))


def _is_of_host(name: str) -> bool:
    return name in _OF_A_HOST or name.startswith(_OF_ITS_JOBS)


def _set_environment(variables: Mapping[str, str]) -> None:
    says_nothing_of_hosts = HOST_VARIABLE in variables  # it comes from an engine on another host, which has its own
    gone = (name for name in os.environ if name not in variables and not (says_nothing_of_hosts and _is_of_host(name)))
    changed = {**dict.fromkeys(gone), **variables}
    _update_environment({name: value for name, value in changed.items() if not _is_own(name)})


def _update_environment(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


_SETTINGS = {
    "IPython.%cd": Setting(visited, set_visited),
    KNOWN: Setting(of_others, be_told),
    "torch.set_printoptions": Setting(_torch_printing, lambda options: vars(torch._tensor_str.PRINT_OPTS).update(options)),
    "torch.set_default_device": Setting(lambda: torch.get_default_device().type, _set_default_device),
    "torch.set_float32_matmul_precision": Setting(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    # Behind the one above, which says it too, but cannot be asked where this has been set by itself.
    "torch.backends.cuda.matmul.fp32_precision": _flag(torch.backends.cuda.matmul, "fp32_precision"),
    "torch.backends.cudnn.fp32_precision": Setting(lambda: (_CUDNN.conv.fp32_precision, _CUDNN.rnn.fp32_precision), _set_cudnn_precision),
    **{
        f"torch.backends.cuda.matmul.{name}": _flag(torch.backends.cuda.matmul, name)
        for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction", "allow_fp16_accumulation")
    },
    "torch.backends.cuda.sdp": Setting(
        lambda: [getattr(torch.backends.cuda, f"{kernel}_sdp_enabled")() for kernel in _ATTENTION], _set_attention
    ),
    "torch.backends.cudnn.enabled": _flag(torch.backends.cudnn, "enabled"),
    "torch.autograd.set_detect_anomaly": Setting(
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()), lambda both: torch.set_anomaly_enabled(*both)
    ),
    "torch.backends.cudnn.benchmark": _flag(torch.backends.cudnn, "benchmark"),
    "torch.backends.cudnn.deterministic": _flag(torch.backends.cudnn, "deterministic"),
    # torch.compile disables it for the rest of the process, and not every engine may have run that cell.
    "torch.distributions": _flag(torch.distributions.Distribution, "_validate_args"),
    # Hooks of modules and optimizers are sent with their numbers, and a new one would replace an older one of the same number.
    "torch.utils.hooks": Setting(lambda: RemovableHandle.next_id, _set_next_hook),
    "numpy.set_printoptions": Setting(_numpy_printing, lambda options: np.set_printoptions(**options)),
    "numpy.seterr": Setting(np.geterr, lambda kinds: np.seterr(**kinds)),
    "decimal.getcontext": Setting(_decimal_context, _set_decimal_context),
    "sys.argv": _flag(sys, "argv"),  # the default input of argparse
    "sys.setrecursionlimit": Setting(sys.getrecursionlimit, _set_recursion_limit),
    "gc.enable": Setting(gc.isenabled, lambda is_enabled: gc.enable() if is_enabled else gc.disable()),
    "gc.set_threshold": Setting(gc.get_threshold, lambda numbers: gc.set_threshold(*numbers)),
    "warnings.filters": Setting(warning_filters, set_warning_filters),
    ENVIRONMENT: Setting(_environment, _set_environment),
    SOME_OF_IT: Setting(dict, _update_environment),
}

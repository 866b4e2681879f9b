"""List every entry point of a library that is replaced, in one table: owner, names, why, and for how long.

Code that replaces an entry point calls :func:`patched`, or :func:`put` if the replacement stays. Both raise an error for entry points that
are not in the table. ``docs/reference/patches.md`` is generated from it, and a test compares the libraries of an engine before and after a
cell. Integrations of other packages have their own lists.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any
from unittest import mock

CELL = "a cell"
CALL = "one call of a model"
GROUP = "the making of a process group"
ARRIVAL = "the reading of what was sent"
ENGINE = "the engine's process"
CONTROLLER = "the controller's process"


@dataclass(frozen=True)
class Replaced:
    """A row of the table.

    Attributes
    ----------
    owner : str
        Dotted name of a module or a class, or a pattern of such names.
    names : str
        Its replaced attributes, or patterns of them, separated by spaces.
    why : str
    scope : str
        At whose end they are restored.
    """

    owner: str
    names: str
    why: str
    scope: str = CELL


_NUMBERS = "takes numbers over the batch, for whose sake no `__torch_function__` is asked"
_FACTORS = "add sub subtract addbmm addcdiv addcmul addmm addmv addr baddbmm index_add"
_LATER = (
    "narrow narrow_copy select select_scatter slice_scatter topk kthvalue roll tril triu multinomial histc renorm as_strided unsafe_split "
    "bincount hardshrink dist std var repeat_interleave nonzero_static"
)
_ONCE = "rank 0 does it for all; a cell that goes on does it once"
_SEEDS = "all ranks seed alike"
_ASKED = "the cell's own code gets on every rank what rank 0 gets"

TABLE = (
    # -- models
    Replaced("torch.nn.modules.module.Module", "__init__ __call__ __setattr__", "its calls are sharded, and what it keeps is followed"),
    Replaced("torch.nn.modules.module.Module", "register_*_hook", "a model with hooks is called as one process calls it"),
    Replaced("torch.nn.modules.module", "BackwardHook", "hooks of modules get gradients of the global batch"),
    Replaced("torch.nn.functional", "batch_norm", "statistics are taken over the global batch"),
    Replaced("torch._VF", "_pad_packed_sequence", "sequences are padded to the longest of the global batch"),
    # -- loaders
    Replaced("torch.utils.data.dataloader.DataLoader", "__iter__ __len__", "each rank loads its shard of a batch"),
    Replaced("torchdata.stateful_dataloader.*", "__iter__ __init__", "as PyTorch's own loader and its iterator"),
    Replaced("torch.utils.data.dataloader._MultiProcessingDataLoaderIter", "__init__", "workers are joined when the cell ends"),
    # -- backward passes and optimizers
    Replaced("torch.autograd", "backward grad", "gradients are averaged over the ranks"),
    Replaced("torch.autograd.function.Function", "apply", "a function of the user's gets plain tensors, and its backward pass too"),
    Replaced("torch.Tensor", "register_hook retain_grad", "hooks of tensors get gradients of the global batch"),
    Replaced("torch.optim.optimizer.Optimizer", "__init__", "optimizers that a cell makes are followed"),
    Replaced("torch.optim.lr_scheduler.*", "__init__", "schedulers that a cell makes are followed"),
    Replaced("torch.optim.optimizer.Optimizer", "state state_dict load_state_dict", "`zero1`: their state is sharded over the ranks"),
    Replaced("torch.optim.optimizer.Optimizer", "zero_grad", "`--sync-every`: gradients of a rank's own are not looked at"),
    Replaced("torch.nn.modules.module.Module", "zero_grad", "`--sync-every`: gradients of a rank's own are not looked at"),
    Replaced("torch.optim.*", "step", "`zero1`: each rank updates its own parameters. PyTorch wraps it itself with a class's first object"),
    Replaced("torch.amp.grad_scaler.GradScaler", "scale", "the loss that is shown is the cell's"),
    Replaced("torch.distributed", "is_initialized", "a cell sees one process"),
    # -- tensors that span the ranks
    Replaced("torch.Tensor", "data set_ __init__", "takes the full tensor"),
    Replaced("torch.nn.parameter.Parameter", "__new__", "takes the full tensor"),
    Replaced("torch.autograd.variable.VariableMeta", "__call__", "takes the full tensor"),
    Replaced("torch", "tensor as_tensor asarray *Tensor sparse_*_tensor", "takes the full tensor"),
    Replaced("torch._functorch.apis", "vmap_impl", "transforms of functions take full tensors"),
    Replaced(
        "torch._functorch.eager_transforms",
        "grad_impl grad_and_value_impl _vjp_with_argnums _jvp_with_argnums _autograd_grad",
        "transforms of functions take full tensors",
    ),
    Replaced("torch", "arange range eye full full_like randint randperm scalar_tensor", _NUMBERS),
    Replaced("torch", f"{_LATER} {_FACTORS} addmv_ std_mean var_mean rsub trapezoid cumulative_trapezoid", _NUMBERS),
    Replaced("torch", "threshold threshold_ rrelu rrelu_ celu celu_ constant_pad_nd randint_like gradient _foreach_*", _NUMBERS),
    Replaced("torch.Tensor", f"{_LATER} {_FACTORS} *_ new_full", _NUMBERS),
    Replaced("torch._C._nn", "elu elu_ hardtanh hardtanh_ leaky_relu leaky_relu_ multi_margin_loss", _NUMBERS),
    Replaced("torch.nn.functional", "softplus softshrink hardshrink threshold_ celu_ rrelu_", _NUMBERS),
    Replaced("torch._VF", "threshold threshold_", _NUMBERS),
    Replaced("torch.linalg", "vector_norm matrix_norm norm", _NUMBERS),
    Replaced("torch.overrides", "_get_overloaded_args", "their type is equal to that of plain ones, and is asked first", ENGINE),
    # -- sharded parameters
    Replaced("torch.Tensor", "grad _grad", "`zero3`: a tensor that is not sharded gets a sharded gradient whole"),
    Replaced("torch.Tensor", "as_subclass _make_subclass set_", "`zero3`: takes a sharded parameter whole"),
    Replaced("torch.nested._internal.nested_tensor.NestedTensor", "__torch_function__", "`zero3`: takes a sharded parameter whole"),
    Replaced("torch.utils.checkpoint._CheckpointFrame", "save_inputs get_inputs", "`zero3`: keeps a sharded parameter itself"),
    Replaced("torch.autograd.graph.saved_tensors_hooks", "__enter__", "`zero3`: a sharded parameter that hooks return is whole"),
    Replaced("torch.serialization", "_load", "`zero3`: what a cell has loaded is nobody else's memory, and is sharded"),
    Replaced("torch", "clear_autocast_cache", "`tensor`: notices steps within a context that keeps cast weights"),
    Replaced("torch.overrides", "has_torch_function", "`zero3`: layers choose their ways as with plain parameters"),
    Replaced("torch._functorch.eager_transforms", "_wrap_all_tensors_to_functional", "`zero3`: transforms get parameters that stay whole"),
    Replaced("torch._C", "DisableTorchFunction*", "`zero3`: the cell's own code does not read what is on other ranks"),
    # -- compiling and computing again
    Replaced("torch", "compile", "what a cell compiles is compiled inside of models, and run as it is written on global tensors"),
    Replaced(
        "torch.utils.checkpoint",
        "_checkpoint_without_reentrant_generator",
        "computes again as it has computed: compiled, on which batch",
    ),
    Replaced("torch.utils.checkpoint.CheckpointFunction", "apply", "computes again as it has computed: compiled, on which batch"),
    Replaced("torch.utils.checkpoint._allowed_determinism_checks_to_fns", "*", "a recomputed tensor is compared by the rank's shard"),
    Replaced("torch.jit", "trace", "what is recorded is what one process computes"),
    Replaced("torch.jit", "trace_module", "`zero3`: what it gets has parameters that stay whole"),
    Replaced("torch.jit._trace", "trace_module", "`zero3`: what it gets has parameters that stay whole"),
    Replaced("torch.jit._recursive", "create_script_module", "`zero3`: what it gets has parameters that stay whole"),
    Replaced("torch.jit.ScriptFunction", "__call__", "takes the full tensor"),
    Replaced("torch.jit._builtins", "_find_builtin", "TorchScript knows PyTorch's functions by their addresses"),
    Replaced("torch.jit._recursive", "_find_builtin try_compile_fn", "TorchScript knows PyTorch's functions by their addresses"),
    Replaced("torch.cuda.graphs.CUDAGraph", "capture_begin capture_end", "no other thread asks the GPU for anything meanwhile"),
    # -- random numbers
    Replaced("torch", "manual_seed", "what modules draw is drawn for the global batch from here on"),
    Replaced("torch", "seed", f"{_SEEDS}; what modules draw is drawn for the global batch from here on"),
    Replaced("torch", "get_rng_state set_rng_state", "activation checkpointing draws again what was drawn"),
    Replaced("torch.cuda", "manual_seed* seed* *et_rng_state*", "`--rng global`: a model that looks at random states gets the full batch"),
    Replaced("random", "seed", _SEEDS),
    Replaced("random.Random", "seed", _SEEDS),
    Replaced("numpy.random.bit_generator", "randbits", _SEEDS),
    # -- what the system is asked
    Replaced("time", "time* perf_counter* monotonic* process_time* localtime gmtime ctime asctime strftime", _ASKED),
    Replaced("timeit", "default_timer", _ASKED),
    Replaced("uuid", "uuid1 uuid4", _ASKED),
    Replaced("secrets", "token_* randbelow randbits choice", _ASKED),
    Replaced("os", "urandom listdir scandir", _ASKED),
    Replaced("os", "system", _ONCE),
    Replaced("IPython.core.interactiveshell", "system getoutput get_output_error_code", _ONCE),
    Replaced("ipykernel.zmqshell", "system", _ONCE),
    Replaced("subprocess", "run call check_call check_output getoutput getstatusoutput", _ONCE),
    # -- files
    Replaced("builtins", "open", _ONCE),
    Replaced("io", "open", _ONCE),
    Replaced("IPython.core.interactiveshell", "io_open", _ONCE),
    Replaced("IPython.core.interactiveshell._modified_open", "__wrapped__", "what libraries pickle of a cell's `open`"),
    Replaced("os", "mkdir makedirs remove unlink rmdir rename replace open symlink link truncate chmod utime", _ONCE),
    Replaced("os", "stat lstat access readlink", "what a rank has written for itself is there"),
    Replaced("shutil", "rmtree copyfile copy copy2 copytree make_archive unpack_archive", _ONCE),
    Replaced("torch", "save load", _ONCE),
    Replaced("torch.export", "save load", _ONCE),
    Replaced("torch.jit", "load", _ONCE),
    Replaced("torch.jit._script.*ScriptModule", "save", _ONCE),
    Replaced("sqlite3*", "connect", _ONCE),  # and of sqlite3.dbapi2
    Replaced("torch.autograd.profiler.profile", "export_chrome_trace", _ONCE),
    Replaced("tempfile", "mkdtemp", "all ranks have the same folder"),
    Replaced("tempfile.TemporaryDirectory", "_rmtree", "a folder stays for a cell that goes on"),
    Replaced("logging.Handler", "handle", "handlers of the notebook write there"),
    Replaced("warnings", "showwarning", "a warning names the user's line, once for all ranks", ARRIVAL),
    # -- calls that are tried by `--verify`
    Replaced("builtins", "open", "a call that is tried leaves nothing behind", CALL),
    Replaced("io", "open", "a call that is tried leaves nothing behind", CALL),
    Replaced("torch", "save", "a call that is tried leaves nothing behind", CALL),
    Replaced("logging.Logger", "handle", "a call that is tried leaves nothing behind", CALL),
    # -- process groups
    Replaced("torch.distributed", "init_process_group", "`none`: the cell's own group, as under torchrun"),
    Replaced("torch.distributed.rendezvous._rendezvous_handlers", "env", "`none`: ranks meet by a file instead of a port"),
    Replaced("torch.distributed.distributed_c10d", "_new_process_group_helper", "ports that it opens let in no other user", GROUP),
    # -- trackers of experiments
    Replaced("wandb", "init", "rank 0 alone logs; a cell that goes on has its run"),
    Replaced("wandb.sdk.wandb_run.Run", "__exit__ _finish", "a run does not end where the cell goes on"),
    Replaced("litdata.utilities.env._DistributedEnv", "detect", "every rank reads all of a stream, of whose batches a run makes parts"),
    Replaced("mlflow", "start_run", "a cell that goes on has its run"),
    Replaced("mlflow.tracking.fluent", "start_run", "a cell that goes on has its run"),
    Replaced("mlflow.tracking._tracking_service.*", "get_store", "rank 0 asks the store for all"),
    Replaced("mlflow.tracking._tracking_service.client.TrackingServiceClient", "*", "rank 0 asks the store for all"),
    Replaced("mlflow.store.tracking.abstract_store.AbstractStore", "*", "rank 0 asks the store for all"),
    Replaced("torch.utils.tensorboard.writer", "FileWriter", "rank 0 alone writes"),
    Replaced("sys", "breakpointhook", "a breakpoint ends the cell, as nobody could answer its prompt"),
    # -- engines
    Replaced("builtins", "__dtrain__", "rewritten loops find their run; after it they find that it is over", ENGINE),
    Replaced("builtins", "get_ipython", "libraries tell a notebook by it", ENGINE),
    Replaced("getpass", "getpass unix_getpass", "nobody types there", ENGINE),
    Replaced("ipyparallel.controller.heartmonitor.HeartMonitor", "handle_pong", "an engine is there with its first heartbeat", CONTROLLER),
)


def patched(owner: Any, name: str, value: Any, *, create: bool = False, listed: str | None = None) -> AbstractContextManager[Any]:
    """Replace an attribute of a library until the end of the ``with`` block.

    Parameters
    ----------
    owner : module, class or object
    name : str
    value : object
        The replacement.
    create : bool
        Whether the attribute need not exist.
    listed : str, optional
        The owner's name in the table if it is not that of `owner`: for an object, the class whose interface it implements.
    """
    _require(listed or owner_name(owner), name)
    if isinstance(owner, ModuleType) and isinstance(value, FunctionType | type) and not _is_found(value):
        # A library pickles it by name (into a graph for Dask, a task for a worker), by which other processes find the original.
        value.__module__, value.__qualname__ = owner.__name__, name
    return mock.patch.object(owner, name, value, create=create)


def patched_items(owner: dict[str, Any], values: Mapping[str, Any], *, listed: str) -> AbstractContextManager[Any]:
    """Replace items of a library's dict, which is `listed` in the table, until the end of the ``with`` block."""
    for name in values:
        _require(listed, name)
    return mock.patch.dict(owner, values)


def put(owner: Any, name: str, value: Any) -> None:
    """Replace an attribute of a library permanently."""
    _require(owner_name(owner), name)
    setattr(owner, name, value)


def owner_name(owner: Any) -> str:
    """Return the name in the table of a module, a class, or an object's class."""
    if isinstance(owner, ModuleType):
        return owner.__name__
    kind = owner if isinstance(owner, type) else type(owner)
    return kind.__qualname__ if kind.__qualname__.startswith(f"{kind.__module__}.") else f"{kind.__module__}.{kind.__qualname__}"


@lru_cache(maxsize=2048)
def rows_of(owner: str, name: str) -> tuple[Replaced, ...]:
    """Return the rows of the table for an entry point."""
    return tuple(row for row in TABLE if fnmatchcase(owner, row.owner) and any(fnmatchcase(name, known) for known in row.names.split()))


def _is_found(function: FunctionType | type) -> bool:
    return getattr(sys.modules.get(function.__module__ or ""), function.__qualname__, None) is function


def _require(owner: str, name: str) -> None:
    assert owner.startswith(_OURS) or rows_of(owner, name), f"{owner}.{name} has no row in {__name__}"


_OURS = f"{__name__.partition('.')[0]}."

"""List the private names of PyTorch that this project uses, those that begin with ``_``. Another version may lack them.

Each is listed with its purpose; a test reads the code and fails for unlisted names. Before a session begins, it checks that they exist, and
reports all missing ones in one sentence, instead of an ``AttributeError`` deep in the code.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

from ..errors import UsageError

NAMES = {
    # -- tensors that span the ranks
    "torch._C.DisableTorchFunction": "operations on a rank's own tensors",
    "torch._C.DisableTorchFunctionSubclass": "operations on a rank's own tensors",
    "torch._C._is_torch_function_enabled": "whether it is the cell that sets a gradient",
    "torch._C._EnableTorchFunction": "hooks of the user's within such operations",
    "torch._C._disabled_torch_function_impl": "a tensor class without rules of its own",
    "torch._C.DispatchKey.AutogradFunctionality": "whether autograd is looking",
    "torch._C._dispatch_tls_is_dispatch_key_excluded": "whether autograd is looking",
    "torch._C._current_graph_task_id": "whether a backward pass is under way",
    "torch._C._functorch.maybe_current_level": "whether a transform of functions is under way",
    "torch._C._autograd._top_saved_tensors_default_hooks": "whether activations are kept elsewhere",
    "torch._C._autograd._unsafe_set_version_counter": "a tensor that was put back is as it was for autograd",
    "torch._C._nn": "functions that take plain numbers",
    "torch._VF": "functions that take plain numbers or pad sequences",
    "torch._functorch.apis": "transforms of functions",
    "torch._functorch.eager_transforms": "transforms of functions",
    "torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack": "transforms of functions",
    "torch._C._functorch._add_batch_dim": "backward passes from many starts at once",
    "torch._C._functorch.is_legacy_batchedtensor": "backward passes from many starts at once",
    "torch._C._vmapmode_increment_nesting": "backward passes from many starts at once",
    "torch._C._vmapmode_decrement_nesting": "backward passes from many starts at once",
    "torch._add_batch_dim": "backward passes from many starts at once",
    "torch._remove_batch_dim": "backward passes from many starts at once",
    "torch._ops.OpOverload": "operators of the user's own",
    "torch.autograd.Variable._execution_engine": "what is done when a backward pass is over",
    "torch.autograd.forward_ad._current_level": "whether forward-mode differentiation is under way",
    "torch.utils._pytree": "values with tensors in them",
    "torch.utils._python_dispatch.TorchDispatchMode": "what a call of a model writes to",
    "torch.utils._python_dispatch._get_current_dispatch_mode": "whether a mode is on that another rank would not know of",
    "torch._C._get_tracing_state": "whether a model is being traced, which would be one of the rank's part",
    "torch.utils._device._device_constructors": "`with torch.device(…)`",
    "torch.Tensor._make_subclass": "who reads sharded parameters",
    "torch._C._set_throw_on_mutable_data_ptr": "who reads sharded parameters",
    "torch._C._storage_Use_Count": "who holds sharded parameters",
    "torch.serialization._load": "whose memory a parameter has that the cell has loaded",
    "torch.multiprocessing.reductions.StorageWeakRef": "whose memory a parameter has that the cell has loaded",
    "torch._C._functorch.peek_interpreter_stack": "whether a transform of functions is under way",
    "torch.nested._internal.nested_tensor.NestedTensor": "nested tensors that meet sharded parameters",
    "torch._C.ScriptFunction": "scripted functions that are given parameters",
    # -- what a cell will take
    "torch._subclasses.fake_tensor.FakeTensor": "on which device one is",
    "torch._subclasses.fake_tensor.FakeTensorMode": "a training step without data",
    "torch._subclasses.fake_tensor.unset_fake_temporarily": "an operation that is tried with data",
    # -- models
    "torch.nn.modules.batchnorm._BatchNorm": "layers with statistics over the batch",
    "torch.nn.modules.batchnorm._NormBase": "layers with statistics over the batch",
    "torch.nn.functional._verify_batch_size": "layers with statistics over the batch",
    "torch.nn.modules.module._global_backward_hooks": "hooks of all modules",
    "torch.nn.modules.module._global_backward_pre_hooks": "hooks of all modules",
    "torch.nn.modules.module._global_forward_hooks": "hooks of all modules",
    "torch.nn.modules.module._global_forward_pre_hooks": "hooks of all modules",
    "torch.nn.modules.module._has_any_global_hook": "whether somebody looks at what every module is given",
    "torch.overrides._get_overloaded_args": "which operands of functions written in Python decide what they do",
    "torch.overrides._get_current_function_mode_stack": "whether somebody looks at every operation",
    "torch.nn.utils.parametrize._cache": "parametrized modules whose call is taken back",
    "torch.nn.utils.parametrize._inject_new_class": "how a parametrized module is read",
    "torch.nn.utils.parametrize._inject_property": "how a parametrized module is read",
    "torch.utils.checkpoint._CheckpointFrame": "activation checkpointing that is given sharded parameters",
    "torch.utils.checkpoint._checkpoint_without_reentrant_generator": "activation checkpointing",
    "torch.optim.Optimizer._optimizer_step_code": "whose frame an optimizer's step is",
    # -- compiled code
    "torch._dynamo": "compiled models",
    "torch._inductor": "compiled models",
    "torch._library.custom_ops": "operators of the user's own",
    "torch._C.ScriptMethod": "scripted models",
    "torch._C._autograd._ProfilerResult": "profiles",
    "torch.jit._builtins._find_builtin": "scripting in a cell",
    "torch.jit._recursive": "scripting in a cell",
    "torch.jit._trace": "tracing in a cell",
    # -- random numbers
    "torch._standard_gamma": "sampling for the global batch",
    "torch._sample_dirichlet": "sampling for the global batch",
    "torch.ops.aten._scaled_dot_product_attention_math": "dropout in attention",
    "torch.cuda._is_in_bad_fork": "random states of CUDA devices",
    # -- data
    "torch.utils.data._utils": "batches that are put together as a loader would",
    "torch.utils.data.dataloader._BaseDataLoaderIter": "iterators of loaders",
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter": "iterators of loaders",
    # -- processes
    "torch._foreach_copy_": "sums in shared memory",
    "torch._utils._flatten_dense_tensors": "gradients that are exchanged together",
    "torch._utils._unflatten_dense_tensors": "gradients that are exchanged together",
    "torch._has_compatible_shallow_copy_type": "gradients of a model that is converted",
    "torch._amp_foreach_non_finite_check_and_unscale_": "gradients that a `GradScaler` divides by its scale",
    "torch.UntypedStorage._new_shared": "tensors in shared memory",
    "torch.distributed.distributed_c10d._get_default_store": "what ranks tell each other once",
    "torch.distributed.distributed_c10d._new_process_group_helper": "who may reach a process group",
    # -- settings
    "torch._tensor_str.PRINT_OPTS": "how tensors are printed",
}
"""Purpose of each name. A name may be the common prefix of several."""
_OPTIONAL = ("torch._inductor", "torch._functorch", "torch._dynamo")
"""Not imported just for the check: they are imported, or nothing of them is needed."""


def missing() -> list[str]:
    """Return the names that this process's PyTorch lacks, in order. Only imported modules are checked."""
    return [name for name in NAMES if not name.startswith(_OPTIONAL) and not _is_there(name)]


def require() -> None:
    """Raise an error for a PyTorch that lacks any of the names.

    Raises
    ------
    UsageError
        The message lists all of them.
    """
    import torch

    if absent := missing():
        lacks = ", ".join(f"{name} ({NAMES[name]})" for name in absent)
        raise UsageError(
            f"PyTorch {torch.__version__} lacks what jupyter_dtrain needs: {lacks}. Install a version that its metadata allows."
        )


def _is_there(name: str) -> bool:
    parts = name.split(".")
    length = next(length for length in range(len(parts), 0, -1) if ".".join(parts[:length]) in sys.modules)
    found: Any = sys.modules[".".join(parts[:length])]
    for index, part in enumerate(parts[length:], length):
        if not hasattr(found, part):
            # A module that is not imported yet is not imported for the check.
            return hasattr(found, "__path__") and find_spec(".".join(parts[: index + 1])) is not None
        found = getattr(found, part)
    return True

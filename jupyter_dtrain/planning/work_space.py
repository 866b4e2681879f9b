"""Measure the time, temporary memory and padding of library operations, which shapes alone do not tell.

oneDNN reorders the tensors of convolutions and keeps intermediate values of each step of an LSTM. How much depends on the processor and the
sizes. So such an operation is called on zeros with few samples, while PyTorch's allocator is profiled. The cost of more samples is
extrapolated from two numbers of samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.autograd.profiler import profile

from .step_work import all_bytes

MOST = 1 << 23
"""Bytes of samples that a measured operation gets at most."""
TRIES = 2
_ATEN = torch.ops.aten
_SAMPLES: Mapping[Any, Mapping[int, int]] = {
    _ATEN.convolution.default: {0: 0},
    _ATEN.convolution_backward.default: {0: 0, 1: 0},
    _ATEN.mkldnn_rnn_layer.default: {0: 1, 5: 0, 6: 0},
    _ATEN.mkldnn_rnn_layer_backward.default: {0: 1, 5: 0, 6: 0, 7: 1, 8: 0, 9: 0, 10: 1, 11: 0, 12: 0},
}
"""For each operation that is measured: the dim of the samples in each argument, by the argument's index."""


class Space(NamedTuple):
    """Peak bytes that an operation allocates, outputs included, the bytes of each output, and seconds."""

    most: int
    returned: tuple[int, ...]
    seconds: float


class WorkSpace:
    """Costs of operations on a CPU, measured once for each operation and shapes."""

    def __init__(self) -> None:
        self._known: dict[Any, Space | None] = {}

    def of(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Space | None:
        """Return the cost of an operation; ``None`` if shapes determine it or it cannot be measured."""
        dims = _SAMPLES.get(func)
        if dims is None or kwargs or args[0].device.type != "cpu":
            return None
        samples = int(args[0].shape[dims[0]])
        each = max(1, all_bytes([args[index] for index in dims if index < len(args)]) // max(samples, 1))
        number = min(samples, max(2, MOST // each))
        most = self._tried(func, args, dims, number)
        if number == samples or most is None:
            return most
        less = self._tried(func, args, dims, number // 2)
        if less is None:
            return None

        def beyond(one: float, other: float) -> float:
            return one + max(0.0, one - other) * float(samples - number) / (number - number // 2)

        returned = tuple(int(beyond(*of)) for of in zip(most.returned, less.returned, strict=True))
        return Space(int(beyond(most.most, less.most)), returned, beyond(most.seconds, less.seconds))

    def _tried(self, func: Any, args: Sequence[Any], dims: Mapping[int, int], number: int) -> Space | None:
        key = func, number, *(_look(arg, dims.get(index)) for index, arg in enumerate(args))
        if key not in self._known:
            with unset_fake_temporarily(), torch.enable_grad():  # an LSTM keeps its intermediate values only if it needs a gradient
                try:
                    self._known[key] = _try(func, [_zeros(arg, dims.get(index), number) for index, arg in enumerate(args)])
                except RuntimeError:  # the operation does not accept zeros
                    self._known[key] = None
        return self._known[key]


def most_allocated(do: Callable[[], Any]) -> tuple[int, Any]:
    """Return the peak bytes that PyTorch's CPU allocator has given out while `do` ran, and what `do` returned."""
    with profile(profile_memory=True) as watched:
        returned = do()
    events = sorted((one.start_ns(), one.nbytes()) for one in watched.kineto_results.events() if one.name() == "[memory]")
    return max(accumulate(size for _, size in events), default=0), returned


def _try(func: Any, args: list[Any]) -> Space:
    if func is _ATEN.mkldnn_rnn_layer_backward.default:
        args[-1] = _forward_of(args)[-1]
    most, returned = most_allocated(lambda: func(*args))
    tensors = [returned] if isinstance(returned, torch.Tensor) else returned
    seconds = []
    for _ in range(TRIES):
        begun = time.perf_counter()
        func(*args)
        seconds.append(time.perf_counter() - begun)
    return Space(most, tuple(0 if one is None else one.untyped_storage().nbytes() for one in tensors), min(seconds))


def _forward_of(args: Sequence[Any]) -> Any:
    """Return the output of the forward pass that belongs to the arguments of a recurrent backward pass."""
    reverse, mode, hidden_size, num_layers, has_biases, train, bidirectional, batch_sizes, batch_first = args[13:22]
    others = reverse, batch_sizes, mode, hidden_size, num_layers, has_biases, bidirectional, batch_first, train
    return _ATEN.mkldnn_rnn_layer.default(*args[:7], *others)


def _look(arg: Any, dim: int | None) -> Any:
    """Return a key that is equal for arguments of equal cost, apart from the number of samples."""
    if not isinstance(arg, torch.Tensor):
        return str(arg)
    return tuple(size for index, size in enumerate(arg.shape) if index != dim), _order(arg), arg.dtype


def _order(arg: torch.Tensor) -> tuple[int, ...]:
    """Return the dims of a tensor in their memory order, the outermost first."""
    strides = arg.stride()
    return tuple(sorted(range(arg.dim()), key=lambda dim: -strides[dim]))


def _zeros(arg: Any, dim: int | None, number: int) -> Any:
    """Return zeros with `number` samples, laid out as the fake `arg`."""
    if not isinstance(arg, torch.Tensor):
        return arg
    shape = tuple(number if index == dim else size for index, size in enumerate(arg.shape))
    there = tuple(1 if arg.stride(index) == 0 else size for index, size in enumerate(shape))
    return torch.empty_permuted(there, _order(arg), dtype=arg.dtype, device="cpu").zero_().expand(shape)

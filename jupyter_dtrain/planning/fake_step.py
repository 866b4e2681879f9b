"""Run a training step on fake tensors, which have PyTorch's shapes, dtypes and lifetimes without data.

It runs in a process that is thrown away (:mod:`.forked`, :mod:`.new_process`). So it may change modules and optimizers in place and draw
random numbers without an effect on the notebook.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map

from ..errors import UsageError
from .cell_batch import batch_size_of, loss_of
from .equal_blocks import EqualBlocks
from .fake_update import Updated, num_bytes, update
from .layer_calls import NO_RULES, Calls, Rules, is_divided_by_heads, is_wide
from .live_bytes import Lap, LayerMemory, LiveBytes, StepMemory, between
from .model_cut import groups_of, work_of
from .step_work import LARGE, StepWork, Work
from .work_space import WorkSpace

Call = Callable[[nn.Module, Any], Any]


def train_on_fakes(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    batch: Any,
    engines: Sequence[int],
    *,
    device: str,
    call: Call,
    keeps_output: bool = True,
    rules: Rules = NO_RULES,
) -> tuple[int, dict[int, StepMemory]]:
    """Run training steps on the shares of a batch that an engine can have. The model and the optimizers cannot be used afterwards.

    Steps run on the smallest and the largest share. Those between are interpolated, as most costs are linear in the samples.

    Parameters
    ----------
    optimizers : sequence of Optimizer
        Optimizers of the model.
    batch : object
        Batch of the loader.
    engines : sequence of int
        Possible numbers of engines.
    device : str
        Device of the fakes.
    call : callable
        Calls the model with a batch.
    keeps_output : bool
        Whether the cell binds the model's output to a name, so that it lives until the end of the step.
    rules : Rules
        Which layers engines compute together.

    Returns
    -------
    int
        Samples of a batch.
    dict of int to StepMemory
        Memory by the samples of a share.
    """
    size = batch_size_of(batch)
    if not size:
        raise UsageError("there is no tensor in the first batch of the loader")
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        parameters = _make_fake(model, mode, device)
        for optimizer in optimizers:
            _follow(optimizer, parameters)
        model.train()
        shares = sorted({-(-size // number) for number in engines})
        ends: dict[int, StepMemory] = {}
        updated: Updated | None = None
        work: StepWork | None = None
        space = WorkSpace()
        for share in dict.fromkeys((shares[-1], shares[0])):
            part = tree_map(lambda leaf, share=share: _part(leaf, size, share, mode, device), batch)
            passed = _passed(model, part, call, rules, work, space, keeps_output=keeps_output)
            work = passed.work
            updated = updated or update(model, optimizers)
            ends[share] = _memory(model, optimizers, passed, updated, rules)
            model.zero_grad()
        return size, {share: ends.get(share) or between(share, ends) for share in shares}


class _Passed(NamedTuple):
    """Costs of a forward and a backward pass beside what existed before, and the name of the loss."""

    lap: Lap
    work: StepWork
    loss: str
    groups: tuple[int, ...]
    computed: tuple[int, ...]


def _part(leaf: Any, size: int, share: int, mode: FakeTensorMode, device: str) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    part = leaf[:share].clone() if leaf.dim() and leaf.shape[0] == size else leaf
    return mode.from_tensor(part.detach()).to(device)


def _passed(
    model: nn.Module, batch: Any, call: Call, rules: Rules, known: StepWork | None, space: WorkSpace, *, keeps_output: bool
) -> _Passed:
    """Run a forward and a backward pass, and leave the gradients. Work is counted unless it is `known`.

    Equal blocks are simulated, unless the model fails that way.
    """
    try:
        return _pass(model, batch, call, rules, known, space, keeps_output=keeps_output, once=True)
    except Exception:  # a model that cannot be called raises again below
        model.zero_grad()
        return _pass(model, batch, call, rules, known, space, keeps_output=keeps_output, once=False)


def _pass(
    model: nn.Module, batch: Any, call: Call, rules: Rules, known: StepWork | None, space: WorkSpace, *, keeps_output: bool, once: bool
) -> _Passed:
    work = Work()
    live, groups = LiveBytes(work if known is None else None, space), groups_of(model)
    calls = Calls(model, rules, work, live.bytes_now)
    blocks = EqualBlocks(model, live, work, calls)
    for value in (*model.parameters(), *model.buffers(), *tree_leaves(batch)):
        live.add(value)
    hooks = [
        parameter.register_post_accumulate_grad_hook(lambda one: None if one.grad is None else live.add_gradient(one.grad))
        for parameter in model.parameters()
        if parameter.requires_grad
    ]
    with ExitStack() as stack:
        stack.callback(lambda: [hook.remove() for hook in hooks])
        stack.enter_context(live)
        with ExitStack() as calling:
            if known is None:
                calling.enter_context(calls.followed(groups, is_divided_by_columns))
            if once:
                stack.enter_context(blocks.once())
            output = call(model, batch)
        loss, name = loss_of(output, batch)
        if not keeps_output:
            del output
        loss.backward()
        lap = live.lap()
    found = known or calls.found(StepWork(samples=batch_size_of(batch), passes=work.lap()))
    return _Passed(lap, found, name, tuple(sum(map(num_bytes, group)) for group in groups), tuple(work_of(model, groups)))


def _memory(model: nn.Module, optimizers: Sequence[Optimizer], passed: _Passed, updated: Updated, rules: Rules) -> StepMemory:
    parameters, buffers = sum(map(num_bytes, model.parameters())), sum(map(num_bytes, model.buffers()))
    gradients = sum(num_bytes(parameter.grad) for parameter in model.parameters() if parameter.grad is not None)
    kept = parameters + buffers
    remaining = max(0, passed.lap.now - kept - gradients)
    return StepMemory(
        parameters=parameters,
        buffers=buffers,
        gradients=gradients,
        optimizer=updated.state,
        peak=updated.state + max(passed.lap.most, kept + gradients + remaining + updated.most),
        sizes=tuple(map(num_bytes, model.parameters())),
        groups=passed.groups,
        computed=passed.computed,
        loss=passed.loss,
        layers=tuple(_layers(model, optimizers, rules)),
        passing=max(0, passed.lap.most - kept),
        ungraded=max(0, passed.lap.ungraded - kept),
        remaining=remaining,
        updating=updated.most,
        one_by_one=updated.one_by_one,
        work=replace(passed.work, updating=updated.traffic, updates=updated.operations),
    )


def is_divided_by_columns(module: nn.Module) -> bool:
    """Return whether `module` is a large linear layer, which `--strategy tensor` shards."""
    if not isinstance(module, nn.Linear) or type(module).forward is not nn.Linear.forward:
        return False
    return not isinstance(module, NonDynamicallyQuantizableLinear) and num_bytes(module.weight) >= LARGE


def _layers(model: nn.Module, optimizers: Sequence[Optimizer], rules: Rules) -> Iterator[LayerMemory]:
    layers = [module for module in model.modules() if is_divided_by_columns(module)]
    found = {id(p): (p, p.shape[0], False) for layer in layers for p in layer.parameters(recurse=False)}
    for heads in map(rules.heads_of, model.modules()):
        if heads is not None and not heads.why_not and is_divided_by_heads(heads):
            found |= {id(p): (p, heads.number, True) for p, *_ in heads.by_heads}
    for pair in (pair for module in model.modules() for pair in rules.pairs_of(module)):
        for layer in (*pair.firsts, pair.second):
            rows, own = math.gcd(*pair.heads), [layer.weight, *([] if layer is pair.second else [layer.bias])]
            if not isinstance(layer, nn.Linear) and is_wide(layer):
                found |= {id(p): (p, rows or max(layer.weight.shape), bool(rows)) for p in own if p is not None}
    elsewhere = [id(p) for module in model.modules() if not is_divided_by_columns(module) for p in module._parameters.values()]
    tied = {id(p) for layer in layers for p in layer.parameters(recurse=False)}.intersection(elsewhere)
    for parameter, rows, is_even in found.values():
        kept = [leaf for one in optimizers for leaf in tree_leaves(one.state.get(parameter, {})) if torch.is_tensor(leaf)]
        gradient = 0 if parameter.grad is None else num_bytes(parameter.grad)
        yield LayerMemory(rows, num_bytes(parameter), gradient, sum(map(num_bytes, kept)), is_even, id(parameter) in tied)


def _make_fake(model: nn.Module, mode: FakeTensorMode, device: str) -> dict[int, nn.Parameter]:
    """Replace a model's parameters and buffers by fakes; return the fake parameters by the ``id`` of the originals."""
    parameters: dict[int, nn.Parameter] = {}
    buffers: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in parameters:
                    there = mode.from_tensor(parameter.detach()).to(device)
                    parameters[id(parameter)] = nn.Parameter(there, requires_grad=parameter.requires_grad)
                module._parameters[name] = parameters[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                if id(buffer) not in buffers:
                    buffers[id(buffer)] = mode.from_tensor(buffer.detach()).to(device)
                module._buffers[name] = buffers[id(buffer)]
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters = lambda: None  # type: ignore[method-assign]
            module._init_flat_weights()
    return parameters


def _follow(optimizer: Optimizer, parameters: Mapping[int, nn.Parameter]) -> None:
    """Give an optimizer the fake parameters; its first step makes its state."""
    optimizer.state.clear()
    for group in optimizer.param_groups:
        group["params"] = [parameters.get(id(parameter), parameter) for parameter in group["params"]]
        group["capturable"] = False  # would need a real GPU

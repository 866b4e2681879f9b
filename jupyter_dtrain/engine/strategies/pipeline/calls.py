"""Calls of a model whose modules are computed by the ranks of their stages.

Each rank runs the model's own code on its shard of the batch. For a module of another stage it sends the activations to the rank that has
the parameters, and receives the output. The shards of the ranks therefore are GPipe's micro-batches: the first stage computes the second
micro-batch while the second stage computes the first. A rank that waits computes for others meanwhile. In the backward pass, gradients
are sent in the opposite direction. Each rank runs the model's code between the blocks itself, so no code has to be traced.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ...comm.mailbox import Mailbox
from ...forward.sharded_call import ShardedCall
from ...tensor.autograd_function import current_apply
from ..zero3.saved import SavedParameters
from .handed_values import NotSent, WritesToInputs, joined, taken_apart
from .pieces import Computed, Key, Pieces
from .sampling import ModelCall, Sampling
from .stage_node import RemoteModules, StageCall
from .stage_requests import StageRequests

LOCAL: Any = object()
"""Returned instead of a result: this rank calls the modules itself."""

_OWN_APPLY = current_apply()  # without the patch that fetches parameters passed to a user's function


class Stages(Protocol):
    """Maps modules and parameters to stages."""

    saved: SavedParameters

    def number_of(self, module: nn.Module) -> int | None:
        """Return the number of a module, which is the same on all ranks."""

    def module(self, number: int) -> nn.Module:
        """Return the module with a number."""

    def stage_parameters(self, modules: Sequence[nn.Module], stage: int) -> Sequence[Any] | None:
        """Return the parameters of `modules`, or ``None`` if the rank of `stage` cannot compute with them for others."""

    def free_buffers(self) -> None:
        """Return unused memory to the system."""


class StageCalls:
    """The calls and backward passes that a rank requests of other stages, and computes for them.

    Parameters
    ----------
    store : Stages
    mailbox : Mailbox
        Connects this rank with one rank of each other stage. Its ranks are the numbers of the stages.
    world_size : int
        The number of all ranks. With data parallelism there are several groups, each with all stages.
    """

    def __init__(self, store: Stages, mailbox: Mailbox, *, world_size: int) -> None:
        self._store, self.rank = store, mailbox.rank
        self.pieces = Pieces(world_size)
        self.requests = StageRequests(mailbox, answer=self._answer, drop=self.pieces.drop)
        self.anchor = nn.Parameter(torch.zeros((), device="cpu"))  # an input of every `StageCall`, so that its outputs require gradients
        self.call: ModelCall | None = None
        self.is_serving = False
        self.num_calls, self.num_with_graph = 0, 0
        self.in_pass, self._keeps = False, False
        self.come_to: set[Key] = set()  # pieces whose gradients this rank has asked for in this pass
        self._met: set[int] = set()  # calls whose first node was reached by all ranks in this pass
        self._dead: deque[tuple[int, Key]] = deque()  # pieces on other ranks whose graph was freed here
        self._not_sent: set[tuple[int, ...]] = set()

    def _begin(self) -> None:
        """Start a phase, in which ranks compute for each other, and drop the pieces of freed graphs."""
        self.requests.begin()
        while self._dead:
            stage, key = self._dead.popleft()
            if stage == self.rank:
                self.pieces.drop(self.rank, key)
            else:
                self.requests.tell_drop(stage, key)

    def _answer(self, kind: str, rank: int, what: Any, tensors: list[torch.Tensor]) -> Any:
        return self._compute_for(rank, what, tensors) if kind == "call" else self._backward_for(rank, what, tensors)

    # -- a model's call ----------------------------------------------------------------------------------------------

    def forward(self, sharded: ShardedCall, own_call: Callable[[Any], Any], own: Any) -> Any:
        """Call a model on the rank's shard of a batch. Collective."""
        if not self.num_calls:  # parameters fetched in earlier steps are no longer needed: their stages compute with them
            self._store.free_buffers()
        self.num_calls += 1
        self.call = ModelCall(sharded, self.num_calls, None if sharded.draws is None else sharded.draws.current)
        self.num_with_graph += torch.is_grad_enabled()
        self._begin()
        try:
            return own_call(own)
        finally:
            self.call = None

    def entered(self, run: Callable[[], Any]) -> Any:
        """Run the model's own code, then compute for others until all ranks have run theirs."""
        assert self.call is not None
        self.call.is_entered = True
        try:
            result = run()
        except Exception:
            self.requests.meet()
            raise
        self.requests.meet()
        return result

    def remote(self, modules: Sequence[nn.Module], stage: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the output of `modules`, called in sequence by the rank of a stage, or `LOCAL` if this rank must call them."""
        call = self.call
        assert call is not None
        shards = self._store.stage_parameters(modules, stage)
        numbers = tuple(-1 if (number := self._store.number_of(module)) is None else number for module in modules)
        if shards is None or -1 in numbers or numbers in self._not_sent or not self._is_plain(call):
            return LOCAL
        tensors: list[torch.Tensor] = []
        try:
            given = taken_apart((args, kwargs), tensors)
        except NotSent:
            return LOCAL
        key = Key(call.number, numbers, call.repeats[numbers])
        requires = [tensor.requires_grad for tensor in tensors] if torch.is_grad_enabled() else None
        if requires is not None and not any(requires) and not any(shard.parameter.requires_grad for shard in shards):
            requires = None
        if stage == self.rank:
            try:
                with self._served(), call.tried():
                    computed = self._compute(self.rank, key, modules, shards, given, tensors, requires)
            except WritesToInputs as why:
                raise why.error() from None
            except NotSent:
                self._not_sent.add(numbers)
                return LOCAL
            tree, outs, needs = computed.tree, computed.tensors, computed.requires_grad
        else:
            answer, outs = self.requests.ask(stage, "call", (key, given, requires, Sampling.of(call)), tensors)
            if isinstance(answer, str):
                self._not_sent.add(numbers)
                return LOCAL
            tree, needs, sampled = answer
            sampled.follow(call)
        call.repeats[numbers] += 1
        if any(needs):
            copied = [(tensor, tensor.clone()) for tensor in tensors if not tensor.requires_grad] if stage != self.rank else []
            remote = RemoteModules(self, stage, key, not call.has_node, needs, list(outs), copied)
            call.has_node = True
            weakref.finalize(remote, self._dead.append, (stage, key))
            outs = _OWN_APPLY(StageCall, remote, self.anchor, *tensors)
        return joined(tree, outs, tensors)

    def _is_plain(self, call: ModelCall) -> bool:
        """Return whether no autograd hook, mode or transform is active that would have to be active on the other rank too."""
        if call.drawing is not None and call.drawing.per_rank:
            return False
        hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(False)
        is_own = hooks is None or getattr(hooks[0], "__self__", None) is self._store.saved
        return (
            is_own
            and not torch.is_autocast_enabled("cpu")
            and _get_current_dispatch_mode() is None
            and torch._C._functorch.peek_interpreter_stack() is None
            and not torch.is_inference_mode_enabled()
        )

    @contextmanager
    def _served(self) -> Any:
        before, self.is_serving = self.is_serving, True
        try:
            yield
        finally:
            self.is_serving = before

    def _compute_for(self, rank: int, what: Any, tensors: list[torch.Tensor]) -> Any:
        key, given, requires, sampling = what
        call = self.call
        assert call is not None
        modules = [self._store.module(number) for number in key.modules]
        shards = self._store.stage_parameters(modules, self.rank)
        if shards is None:
            raise NotSent("their parameters are in use")
        with self._served(), sampling.going_on(call) as sampled:
            computed = self._compute(rank, key, modules, shards, given, tensors, requires)
        return (computed.tree, computed.requires_grad, sampled[0]), computed.tensors

    def _compute(self, rank: int, key: Key, *what: Any) -> Computed:
        """Call modules as :meth:`.Pieces.compute` does, if their backward pass needs nothing that only `rank` knows."""
        assert self.call is not None
        functions = self.call.sharded.view.functions
        before = functions.num_bent
        computed = self.pieces.compute(rank, key, *what)
        if functions.num_bent != before:
            self.pieces.drop(rank, key)
            raise NotSent("a backward pass of their own is not linear")
        return computed

    # -- a backward pass ---------------------------------------------------------------------------------------------

    def begin_pass(self, *, keeps: bool) -> None:
        """Begin a backward pass. `keeps`: it retains the graph. Collective."""
        self._begin()
        self.in_pass, self._keeps = True, keeps
        self._met, self.come_to = set(), set()

    def finish_pass(self) -> None:
        """Compute for others until all ranks have finished their backward passes. Collective."""
        try:
            self.requests.meet()
        finally:
            self.in_pass = False
            self.requests.finish()

    def backward(self, remote: RemoteModules, gradients: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Return the gradients of the inputs of `remote`, given the gradients of its outputs."""
        if not self.in_pass:
            raise RuntimeError("`--strategy pipeline` supports only `loss.backward()`, without `create_graph`. Use `--strategy zero3`.")
        if remote.stage == self.rank:
            if remote.key.call not in self._met:  # gradients are added in rank order: early ones would have to be kept
                self.requests.let_others_ask(remote.key.call, lambda: self.pieces.missing_before(self.rank, remote.key))
            found = self.pieces.backward(self.rank, remote.key, gradients, keeps=self._keeps)
        else:
            there = [gradient is not None for gradient in gradients]
            sent = [gradient for gradient in gradients if gradient is not None]
            there, tensors = self.requests.ask(remote.stage, "grad", (remote.key, there, self._keeps), sent)
            rest = iter(tensors)
            found = [next(rest) if is_there else None for is_there in there]
        self.come_to.add(remote.key)
        if remote.is_first:  # wait before the graph in front of the model, which may contain collectives
            self.requests.meet(remote.key.call)
            self._met.add(remote.key.call)
        return found

    def _backward_for(self, rank: int, what: Any, tensors: list[torch.Tensor]) -> Any:
        key, there, keeps = what
        rest = iter(tensors)
        found = self.pieces.backward(rank, key, [next(rest) if is_there else None for is_there in there], keeps=keeps)
        return [gradient is not None for gradient in found], [gradient for gradient in found if gradient is not None]

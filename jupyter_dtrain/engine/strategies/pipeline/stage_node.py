"""Modules that the rank of another stage has called for this one, as a node in this rank's graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from ...tensor.ops.operands import same_bytes
from .pieces import Key


class AskedRanks(Protocol):
    """What a node asks for its gradients."""

    anchor: nn.Parameter

    def backward(self, remote: RemoteModules, gradients: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Return the gradients of what modules were given, from those of what they have returned."""


@dataclass(eq=False)
class RemoteModules:
    """Modules that another rank has called for this one, in this rank's graph."""

    calls: AskedRanks
    stage: int
    key: Key
    is_first: bool
    needs: list[bool]
    tensors: list[torch.Tensor]
    given: list[tuple[torch.Tensor, torch.Tensor]]
    """What it has a copy of, with a copy of our own: inputs, which the cell may write to in ways that PyTorch does not count."""
    __hash__ = object.__hash__

    def check_given(self) -> None:
        """Look whether what was given is still what the other rank has.

        Raises
        ------
        RuntimeError
        """
        if not all(same_bytes(tensor, copy) for tensor, copy in self.given):
            raise RuntimeError(
                "The cell wrote to a model's input between its call and the backward pass. `--strategy pipeline` has already sent the "
                "input to another engine. Write to a copy (`x.clone()`), or use `--strategy zero3`."
            )


class StageCall(torch.autograd.Function):
    """A node: the results of :class:`RemoteModules` come out of it, and their gradients go back through it."""

    @staticmethod
    def forward(ctx: Any, remote: RemoteModules, _anchor: torch.Tensor, *_given: torch.Tensor) -> Any:
        """Return the results, which another rank has computed."""
        ctx.remote = remote
        ctx.set_materialize_grads(False)
        tensors, remote.tensors = remote.tensors, []
        ctx.mark_non_differentiable(*(tensor for tensor, needs in zip(tensors, remote.needs, strict=True) if not needs))
        return tuple(tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        """Let that rank go back through its piece."""
        remote: RemoteModules = ctx.remote
        remote.check_given()
        wanted = [gradient for gradient, needs in zip(gradients, remote.needs, strict=True) if needs]
        found = iter(remote.calls.backward(remote, wanted))
        of_given = [next(found) if needs else None for needs in ctx.needs_input_grad[2:]]
        return None, remote.calls.anchor.new_zeros(()), *of_given


NODE = StageCall._backward_cls  # of the node in a graph

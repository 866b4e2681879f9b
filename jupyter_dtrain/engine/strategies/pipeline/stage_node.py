"""The autograd node of modules that the rank of another stage has called for this rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from ...tensor.ops.operands import same_bytes
from .pieces import Key


class AskedRanks(Protocol):
    """Computes the gradients of a node."""

    anchor: nn.Parameter

    def backward(self, remote: RemoteModules, gradients: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Return the gradients of the inputs of `remote`, given the gradients of its outputs."""


@dataclass(eq=False)
class RemoteModules:
    """Modules that another rank has called for this one."""

    calls: AskedRanks
    stage: int
    key: Key
    is_first: bool
    needs: list[bool]
    tensors: list[torch.Tensor]
    given: list[tuple[torch.Tensor, torch.Tensor]]
    """Inputs that were sent, each with a copy: the cell may write to an input in a way that PyTorch's version counter misses."""
    __hash__ = object.__hash__

    def check_given(self) -> None:
        """Check that the inputs still have the values that were sent.

        Raises
        ------
        RuntimeError
            The cell has written to one.
        """
        if not all(same_bytes(tensor, copy) for tensor, copy in self.given):
            raise RuntimeError(
                "The cell wrote to a model's input between its call and the backward pass. `--strategy pipeline` has already sent the "
                "input to another engine. Write to a copy (`x.clone()`), or use `--strategy zero3`."
            )


class StageCall(torch.autograd.Function):
    """The node whose outputs are the results of a :class:`RemoteModules`."""

    @staticmethod
    def forward(ctx: Any, remote: RemoteModules, _anchor: torch.Tensor, *_given: torch.Tensor) -> Any:
        """Return the outputs, which another rank has computed."""
        ctx.remote = remote
        ctx.set_materialize_grads(False)
        tensors, remote.tensors = remote.tensors, []
        ctx.mark_non_differentiable(*(tensor for tensor, needs in zip(tensors, remote.needs, strict=True) if not needs))
        return tuple(tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        """Have the other rank run the backward pass of its piece."""
        remote: RemoteModules = ctx.remote
        remote.check_given()
        wanted = [gradient for gradient, needs in zip(gradients, remote.needs, strict=True) if needs]
        found = iter(remote.calls.backward(remote, wanted))
        of_given = [next(found) if needs else None for needs in ctx.needs_input_grad[2:]]
        return None, remote.calls.anchor.new_zeros(()), *of_given


NODE = StageCall._backward_cls  # the type of the node in a graph

"""Pieces of other ranks' autograd graphs on the rank of a stage, and the gradients of its parameters.

The rank of a stage calls its modules for the others and keeps each graph as a piece. In the backward pass it runs the piece, returns the
gradients of the inputs, and adds up the gradients of its own parameters in rank order, so that sums do not depend on timing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.autograd import grad as _grad

from ...rng.streams import OtherStreams
from ..zero3.parameter_shard import ParameterShard
from .handed_values import NotSent, WritesToInputs, joined, taken_apart


class Key(NamedTuple):
    """Identifies a piece: the model's call, the modules, and the number of their earlier calls within it."""

    call: int
    modules: tuple[int, ...]
    repeat: int


class StageShard(Protocol):
    """A parameter of the stage."""

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter that the cell sees."""

    def computed_with(self) -> Any:
        """Make it an ordinary parameter with its values until the end of the ``with`` block."""


@dataclass(eq=False)
class _Piece:
    """A piece of a graph: outputs that require gradients, leaf inputs, and the parameters used and trained."""

    outs: list[torch.Tensor]
    inputs: list[torch.Tensor]
    shards: list[Any]
    trained: list[Any]


@dataclass
class Computed:
    """The output of modules.

    Attributes
    ----------
    tree : object
        The output with a slot for each tensor, or the number of the argument that it is.
    tensors : list of Tensor
        Detached.
    requires_grad : list of bool
        Whether each tensor required gradients.
    """

    tree: Any
    tensors: list[torch.Tensor]
    requires_grad: list[bool]


@dataclass
class _Sum:
    """The sum of parameter gradients over ranks, added in rank order whatever the order of arrival."""

    total: dict[int, torch.Tensor] = field(default_factory=dict)
    shards: dict[int, Any] = field(default_factory=dict)
    waiting: dict[int, dict[int, torch.Tensor]] = field(default_factory=dict)
    next_rank: int = 0

    def add(self, rank: int, gradients: dict[int, torch.Tensor], factor: float) -> None:
        """Add `factor` times a rank's gradients, or keep them until those of all lower ranks are added."""
        self.waiting[rank] = gradients
        while self.next_rank in self.waiting:
            self._take(self.waiting.pop(self.next_rank), factor)
            self.next_rank += 1

    def finish(self, factor: float) -> None:
        """Add the gradients that wait for ranks without a piece."""
        for rank in sorted(self.waiting):
            self._take(self.waiting.pop(rank), factor)

    def _take(self, gradients: dict[int, torch.Tensor], factor: float) -> None:
        with torch.no_grad():
            while gradients:
                number, gradient = gradients.popitem()
                scaled = gradient * factor  # not in place: autograd may return one tensor for several parameters
                del gradient
                if number in self.total:
                    self.total[number].add_(scaled)
                else:
                    self.total[number] = scaled


class Pieces:
    """Pieces of graphs on the rank of a stage.

    Parameters
    ----------
    world_size : int
        Gradients are divided by it, as with every strategy.
    """

    def __init__(self, world_size: int) -> None:
        self._factor = 1.0 / world_size
        self._pieces: dict[tuple[int, Key], _Piece] = {}
        self._sums: dict[Key, _Sum] = {}

    def __len__(self) -> int:
        return len(self._pieces)

    def compute(
        self,
        rank: int,
        key: Key,
        modules: Sequence[nn.Module],
        shards: Sequence[Any],
        given: Any,
        tensors: Sequence[torch.Tensor],
        requires_grad: Sequence[bool] | None,
    ) -> Computed:
        """Call `modules` in sequence for a rank, and keep the graph.

        Parameters
        ----------
        rank, key
            Identify the piece.
        given : object
            Positional and keyword arguments of the first module, with slots for tensors.
        requires_grad : sequence of bool, optional
            Of each tensor of `tensors`. ``None``: gradients are disabled.

        Raises
        ------
        NotSent
            The modules have an effect that the requesting rank would not see.
        """  # fmt: skip
        leaves: list[torch.Tensor] = []
        entered: list[torch.Tensor] = []
        with torch.set_grad_enabled(requires_grad is not None), ExitStack() as stack:
            for index, tensor in enumerate(tensors):
                one = tensor.detach()
                if requires_grad is not None and requires_grad[index]:
                    leaves.append(one.requires_grad_())
                    one = one.view_as(one)  # a leaf that requires gradients refuses in-place writes
                entered.append(one)
            before = [one._version for one in entered]
            buffers = [buffer for module in modules for buffer in module.buffers()]
            states, streams = [buffer._version for buffer in buffers], OtherStreams.of(())
            for shard in shards:
                stack.enter_context(shard.computed_with())
            args, kwargs = joined(given, entered)
            containers = taken_apart((args, kwargs), [], entered)
            result = modules[0](*args, **kwargs)
            for module in modules[1:]:
                result = module(result)
            outs: list[torch.Tensor] = []
            tree = taken_apart(result, outs, entered)
        if not OtherStreams.of(()).are(streams):
            streams.set()
            raise NotSent("they draw random numbers by Python or NumPy")
        if [one._version for one in entered] != before:
            raise WritesToInputs("they write to what they are given")
        if taken_apart((args, kwargs), [], entered) != containers:
            raise NotSent("they write to lists or dicts that they are given")
        if [buffer._version for buffer in buffers] != states:
            raise RuntimeError(
                "`--strategy pipeline`: a block has begun to write to its buffers after its first call. Use `--strategy zero3`."
            )
        given_memory, memory = ([one.untyped_storage()._cdata for one in several if one.numel()] for several in (entered, outs))
        if len(set(memory)) < len(memory) or not set(memory).isdisjoint(given_memory):
            raise NotSent("what they return shares memory")
        needs = [out.requires_grad for out in outs]
        if any(needs):
            trained = [shard for shard in shards if shard.parameter.requires_grad]
            self._pieces[rank, key] = _Piece([out for out in outs if out.requires_grad], leaves, list(shards), trained)
        return Computed(tree, [out.detach() for out in outs], needs)

    def backward(self, rank: int, key: Key, gradients: Sequence[torch.Tensor | None], *, keeps: bool) -> list[torch.Tensor | None]:
        """Return the gradients of a piece's inputs, given those of its outputs, and add up those of its parameters.

        Raises
        ------
        RuntimeError
            The piece is used up: a backward pass without ``retain_graph`` went through it.
        """
        piece = self._pieces.get((rank, key)) if keeps else self._pieces.pop((rank, key), None)
        if piece is None:
            raise RuntimeError("Trying to backward through the graph a second time. Specify retain_graph=True the first time.")
        ends = [(out, gradient) for out, gradient in zip(piece.outs, gradients, strict=True) if gradient is not None]
        for shard in piece.trained:
            if shard.parameter._backward_hooks or shard.parameter._post_accumulate_grad_hooks:
                raise RuntimeError("`--strategy pipeline`: a parameter got a hook after its model was called. Use `--strategy zero3`.")
        with ExitStack() as stack:
            for shard in piece.shards:
                stack.enter_context(shard.computed_with())
            wanted = [*piece.inputs, *(shard.parameter for shard in piece.trained)]
            outs, given = [out for out, _ in ends], [gradient for _, gradient in ends]
            found: list[torch.Tensor | None] = [*_grad(outs, wanted, given, retain_graph=keeps, allow_unused=True)]
        own = found[len(piece.inputs) :]
        del found[len(piece.inputs) :]
        numbers = [shard.number for shard in piece.trained]
        of_key = self._sums.setdefault(key, _Sum())
        of_key.shards.update(zip(numbers, piece.trained, strict=True))
        to_add = {number: gradient for number, gradient in zip(numbers, own, strict=True) if gradient is not None}
        del own, wanted, ends, outs, given
        of_key.add(rank, to_add, self._factor)
        return found

    def missing_before(self, rank: int, key: Key) -> list[int]:
        """Return the ranks below `rank` whose piece `key` this backward pass has not reached yet."""
        of_key = self._sums.get(key)
        come = range(rank) if of_key is None else [one for one in range(of_key.next_rank, rank) if one not in of_key.waiting]
        return [one for one in come if (one, key) in self._pieces]

    def drop(self, rank: int, key: Key) -> None:
        """Drop a piece whose graph was freed by its rank."""
        self._pieces.pop((rank, key), None)

    def gradients(self) -> list[tuple[ParameterShard, torch.Tensor]]:
        """Return the gradients added up since the last call, in an order that does not depend on timing."""
        sums, self._sums = self._sums, {}
        found = []
        for key in sorted(sums):
            sums[key].finish(self._factor)
            found += [(sums[key].shards[number], gradient) for number, gradient in sums[key].total.items()]
        return found

    def forget_gradients(self, *, but_of: Collection[Key] = ()) -> None:
        """Discard the gradients of a failed backward pass, except those of some pieces."""
        self._sums = {key: of_key for key, of_key in self._sums.items() if key in but_of}

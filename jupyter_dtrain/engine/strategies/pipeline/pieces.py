"""What the rank of a stage computes for others: pieces of their graphs, and the gradients of its parameters, which all of them add to."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.autograd import grad as _grad

from ...rng.streams import OtherStreams
from ..zero3.parameter_shard import ParameterShard
from .handed_values import NotSent, joined, taken_apart


class Key(NamedTuple):
    """Which piece of a graph: of a call of a model, the modules that it is of, and how often these were called in it before."""

    call: int
    modules: tuple[int, ...]
    repeat: int


class StageShard(Protocol):
    """A parameter of the stage."""

    @property
    def parameter(self) -> nn.Parameter:
        """The cell's object."""

    def computed_with(self) -> Any:
        """Let it be plain, until the end of the ``with`` block."""


@dataclass(eq=False)
class _Piece:
    """A piece of a graph: its ends, and where it comes from."""

    outs: list[torch.Tensor]
    inputs: list[torch.Tensor]
    shards: list[Any]
    trained: list[Any]


@dataclass
class Computed:
    """What modules have returned.

    Attributes
    ----------
    tree : object
    tensors : list of Tensor
        Without their graph.
    requires_grad : list of bool
    """

    tree: Any
    tensors: list[torch.Tensor]
    requires_grad: list[bool]


@dataclass
class _Sum:
    """The gradients of the parameters of a piece, added up in the order of the ranks, whichever comes first."""

    total: dict[int, torch.Tensor] = field(default_factory=dict)
    shards: dict[int, Any] = field(default_factory=dict)
    waiting: dict[int, dict[int, torch.Tensor]] = field(default_factory=dict)
    next_rank: int = 0

    def add(self, rank: int, gradients: dict[int, torch.Tensor], factor: float) -> None:
        """Add `factor` times what a rank has, which is let go one by one, or keep it until it is its turn."""
        self.waiting[rank] = gradients
        while self.next_rank in self.waiting:
            self._take(self.waiting.pop(self.next_rank), factor)
            self.next_rank += 1

    def finish(self, factor: float) -> None:
        """Add what waits for ranks that have not come to it."""
        for rank in sorted(self.waiting):
            self._take(self.waiting.pop(rank), factor)

    def _take(self, gradients: dict[int, torch.Tensor], factor: float) -> None:
        with torch.no_grad():
            while gradients:
                number, gradient = gradients.popitem()
                scaled = gradient * factor  # not in place: what autograd returns for one may be another's too
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
        The gradients are averaged over so many ranks, as those of all strategies are.
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
        """Call `modules` one after the other for a rank, and keep the graph.

        Parameters
        ----------
        rank, key
            Whose piece it is.
        given : object
            Arguments and keyword arguments of the first module.
        requires_grad : sequence of bool, optional
            Which of `tensors` do. ``None``: gradients are off.

        Raises
        ------
        NotSent
            Nothing of what it has done would be seen by the rank.
        """  # fmt: skip
        leaves: list[torch.Tensor] = []
        entered: list[torch.Tensor] = []
        with torch.set_grad_enabled(requires_grad is not None), ExitStack() as stack:
            for index, tensor in enumerate(tensors):
                one = tensor.detach()
                if requires_grad is not None and requires_grad[index]:
                    leaves.append(one.requires_grad_())
                    one = one.view_as(one)  # as a leaf it would not let itself be written to
                entered.append(one)
            before = [one._version for one in entered]
            buffers = [buffer for module in modules for buffer in module.buffers()]
            states, streams = [buffer._version for buffer in buffers], OtherStreams.of(())
            for shard in shards:
                stack.enter_context(shard.computed_with())
            args, kwargs = joined(given, entered)
            result = modules[0](*args, **kwargs)
            for module in modules[1:]:
                result = module(result)
            outs: list[torch.Tensor] = []
            tree = taken_apart(result, outs)
        if not OtherStreams.of(()).are(streams):
            streams.set()
            raise NotSent("they draw random numbers by Python or NumPy")
        if [one._version for one in entered] != before:
            raise NotSent("they write to what they are given")
        if [buffer._version for buffer in buffers] != states:
            raise RuntimeError(
                "`--strategy pipeline`: a block has begun to write to its buffers after its first call. Use `--strategy zero3`."
            )
        memory = [tensor.untyped_storage()._cdata for tensor in (*entered, *outs) if tensor.numel()]
        if len(set(memory[-len(outs) :])) < min(len(memory), len(outs)) or not set(memory[: len(entered)]).isdisjoint(
            memory[len(entered) :]
        ):
            raise NotSent("what they return shares memory")
        needs = [out.requires_grad for out in outs]
        if any(needs):
            trained = [shard for shard in shards if shard.parameter.requires_grad]
            self._pieces[rank, key] = _Piece([out for out in outs if out.requires_grad], leaves, list(shards), trained)
        return Computed(tree, [out.detach() for out in outs], needs)

    def backward(self, rank: int, key: Key, gradients: Sequence[torch.Tensor | None], *, keeps: bool) -> list[torch.Tensor | None]:
        """Return the gradients of what a piece was given, from those of what it has returned; those of its parameters are added up here.

        Raises
        ------
        RuntimeError
            The piece has been gone through, and was not to be kept.
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
        """Return the ranks before `rank` whose pieces with `key` have not been gone through in this pass."""
        of_key = self._sums.get(key)
        come = range(rank) if of_key is None else [one for one in range(of_key.next_rank, rank) if one not in of_key.waiting]
        return [one for one in come if (one, key) in self._pieces]

    def drop(self, rank: int, key: Key) -> None:
        """Forget a piece whose graph is no more."""
        self._pieces.pop((rank, key), None)

    def gradients(self) -> list[tuple[ParameterShard, torch.Tensor]]:
        """Return the gradients that were added up since the last time, in an order that does not go by time."""
        sums, self._sums = self._sums, {}
        found = []
        for key in sorted(sums):
            sums[key].finish(self._factor)
            found += [(sums[key].shards[number], gradient) for number, gradient in sums[key].total.items()]
        return found

    def forget_gradients(self) -> None:
        """Let go what was added up in a pass that has failed."""
        self._sums.clear()

"""Leaves that each rank has for itself, with ``--semantics local``: a batch of its own whose gradient the cell reads.

Parameters are equal on all ranks, and their gradients are averaged. ``x.grad`` of a batch is that of the rank's own loss, as with
``DistributedDataParallel``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from ..identity_map import IdentityMap
from .backward_pass import BackwardPass
from .replica_check import ReplicaCheck


class OwnLeaves:
    """Tells which leaves differ between ranks, and leaves their gradients alone.

    Parameters
    ----------
    replicas : ReplicaCheck
        Compares leaves between ranks.
    say : callable
        Shows the user a message.
    """

    def __init__(self, replicas: ReplicaCheck, say: Callable[[str], None]) -> None:
        self._replicas, self._say = replicas, say
        self._is_own: IdentityMap[bool] = IdentityMap()
        self._has_said = False

    @contextmanager
    def left_alone(self, one: BackwardPass) -> Iterator[list[torch.Tensor]]:
        """Yield the leaves that a pass reaches and whose gradients are averaged. Collective, if it reaches new ones that are no parameters.

        In the ``with`` block the gradients of the others lack the weight that a rank has in an average.
        """
        reached = one.reached()
        others = [leaf for leaf in reached if not isinstance(leaf, nn.Parameter)]
        self._compare([leaf for leaf in others if self._is_own.get(leaf) is None])
        own = {id(leaf): leaf for leaf in others if self._is_own.get(leaf)}
        with ExitStack() as stack:
            if len({*one.factors}) == 1 and (factor := one.factors[0]) not in (0.0, 1.0):
                for leaf in own.values():
                    stack.callback(leaf.register_hook(lambda gradient: gradient / factor).remove)
            yield [leaf for leaf in reached if id(leaf) not in own]

    def _compare(self, leaves: Sequence[torch.Tensor]) -> None:
        for leaf, is_own in zip(leaves, self._replicas.differ(leaves) if leaves else (), strict=True):
            self._is_own.set(leaf, is_own)
            if not is_own and not self._has_said:
                self._has_said = True
                self._say(
                    f"`--semantics local` averages the gradient of a tensor of shape {tuple(leaf.shape)}, which is no parameter, "
                    "because its values are equal on all engines."
                )

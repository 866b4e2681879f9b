"""Gradients that are rounded to 16 bits for the exchange between ranks (``--compress bf16``, ``fp16``).

On ranks that share memory each shows its part in 16 bits, and all add up the parts in the gradient's own type, in the order of the ranks.
Elsewhere PyTorch's reducer has its buckets averaged as its own ``bf16_compress_hook`` does it, sums in 16 bits too, but for the value of
the loss, which travels in a bucket and goes by itself. Either way all ranks come to the same bits. What has 16 bits already goes as it is,
and so do sparse gradients, complex ones, and those with a graph.

What is rounded is what a pass adds: gradients that several passes add up would else be rounded in each of them, and lose what is small
beside the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.futures import Future, collect_all

from ....options import Compress, RunOptions
from ...backward.gradient_exchange import BucketHook, GradientExchange, average, flattened, put_back, together
from ...comm.batch_ranks import batch_memory
from ...comm.shared_memory import SharedMemory

TYPES: dict[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
_WIDE = (torch.float32, torch.float64)
_SAID = {
    "bf16": "with 8 significant bits (about 1 in 256)",
    "fp16": "with 11 significant bits (about 1 in 2,000), and nothing below 6e-8",
}


def exchange_for(options: RunOptions, *, num_ranks: int, are_alike: bool, say: Callable[[str], None]) -> GradientExchange:
    """Return what averages gradients as `options` ask for it, and tell the user what becomes of the numbers.

    `are_alike`: as :class:`CompressedGradients` has it.
    """
    if options.compress == "none" or num_ranks == 1:
        return GradientExchange()
    say(line(options.compress))
    return CompressedGradients(options.compress, say, are_alike=are_alike)


def line(kind: Compress) -> str:
    """Return what the cell is told of its numbers."""
    return (
        f"--compress {kind}: the engines exchange gradients {_SAID[kind]}, so weights differ from one process's, and with the number of "
        "engines; all engines have the same."
    )


class CompressedGradients(GradientExchange):
    """Gradients go as numbers of 16 bits, the value of the loss as it is.

    Parameters
    ----------
    kind : {"bf16", "fp16"}
    say : callable
        Tells the user a line, once.
    are_alike : bool
        Whether all ranks have the same gradients before a pass: not where the cell of each sees its own numbers.
    """

    def __init__(self, kind: Compress, say: Callable[[str], None], *, are_alike: bool = True) -> None:
        self._kind, self._type, self._say, self._are_alike = kind, TYPES[kind], say, are_alike
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # gradients that a pass adds to, and their numbers
        self._overflow: torch.Tensor | None = None  # on a device that is not waited for

    def begins(self, leaves: Sequence[torch.Tensor]) -> None:
        """Note what a pass adds to."""
        found = [leaf.grad for leaf in leaves if leaf.grad is not None and self._are_alike]
        dense = [grad for grad in found if grad.layout == torch.strided and grad.dtype in _WIDE and not grad.requires_grad]
        self._before = {id(grad): (grad, grad.clone()) for grad in dense}

    def _numbers_before(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Return what was in `gradient` before the pass, if that has added to this very tensor."""
        return None if gradient is None else self._before.get(id(gradient), (None, None))[1]

    def average(self, gradients: Sequence[torch.Tensor], value: torch.Tensor | None) -> None:
        """Put the ranks' mean of each of `gradients` in its place, and that of `value`. A collective."""
        wide = [gradient for gradient in gradients if gradient.dtype in _WIDE]
        added_to = [(gradient, before) for gradient in wide if (before := self._numbers_before(gradient)) is not None]
        for gradient, before in added_to:
            gradient.sub_(before)
        for group in together(wide):
            self._average(group)
        for gradient, before in added_to:
            gradient.add_(before)
        self._before = {}
        others = [gradient for gradient in gradients if gradient.dtype not in _WIDE]
        average(others if value is None else [*others, value])

    def _average(self, gradients: Sequence[torch.Tensor]) -> None:
        flat, memory = flattened(gradients), batch_memory()
        if memory is not None and flat.device.type == "cpu":
            _add_up(flat, flat.mul(1.0 / memory.num_ranks).to(self._type), memory)
        else:
            sent = flat.div_(dist.get_world_size()).to(self._type)
            dist.all_reduce(sent)
            flat.copy_(sent)
        self._look(flat)
        put_back(flat, gradients)

    def bucket_hook(self, slot: torch.Tensor | None) -> BucketHook:
        """Return what averages the buckets of PyTorch's reducer."""

        def hook(_state: object, bucket: Any) -> Future[torch.Tensor]:
            flat, num_ranks = bucket.buffer(), dist.get_world_size()
            value = next(
                (grad for leaf, grad in zip(bucket.parameters(), bucket.gradients(), strict=True) if leaf is slot),
                None,
            )
            is_wide = flat.dtype in _WIDE
            pairs = zip(bucket.gradients(), map(self._numbers_before, (leaf.grad for leaf in bucket.parameters())), strict=True)
            added_to = [(gradient, before) for gradient, before in pairs if before is not None]
            for gradient, before in added_to:
                gradient.sub_(before)
            flat.div_(num_ranks)
            apart = value.clone() if value is not None and is_wide else None  # the loss's, of which the cell reads all digits
            if value is not None and is_wide:
                value.zero_()  # it may be more than 16 bits have room for
            sent = flat.to(self._type) if is_wide else flat
            works = [dist.all_reduce(one, async_op=True) for one in (sent, apart) if one is not None]

            def decompress(_: object) -> Any:
                if is_wide:
                    flat.copy_(sent)
                    self._look(flat)
                    for gradient, before in added_to:
                        gradient.add_(before)
                    if value is not None and apart is not None:
                        value.copy_(apart)
                return flat

            done = collect_all([cast("dist.Work", work).get_future() for work in works])
            return cast("Future[torch.Tensor]", done.then(decompress))

        # PyTorch compares annotations with these, and not their text.
        hook.__annotations__ = {"bucket": vars(dist)["GradBucket"], "return": Future[torch.Tensor]}
        return hook

    def _look(self, mean: torch.Tensor) -> None:
        """Look for what numbers of 16 bits have no room for: of these bf16 has none."""
        if self._type is not torch.float16:
            return
        infinite = mean.isinf().any()
        if infinite.device.type == "cpu":
            self._tell(infinite)
        else:
            self._overflow = infinite if self._overflow is None else self._overflow | infinite

    def _tell(self, infinite: torch.Tensor) -> None:
        if infinite:
            self._say(
                f"--compress {self._kind}: gradients overflowed in the exchange, because fp16 has no numbers above 65,504: "
                "use --compress bf16, or a GradScaler, which skips such steps."
            )

    def finish(self) -> None:
        """Say what has been found meanwhile."""
        if self._overflow is not None:
            self._tell(self._overflow)


def _add_up(flat: torch.Tensor, sent: torch.Tensor, memory: SharedMemory) -> None:
    """Put the sum of what all ranks have `sent` into `flat`, added up in its type and in the order of the ranks."""
    parts = [torch.empty_like(sent) for _ in range(memory.num_ranks)]
    memory.all_gather(parts, sent)
    flat.copy_(parts[0])
    for part in parts[1:]:
        flat.add_(part)

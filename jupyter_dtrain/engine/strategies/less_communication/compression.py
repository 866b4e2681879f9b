"""Round gradients to 16 bits for the exchange between ranks (``--compress bf16``, ``fp16``).

Ranks with shared memory each write their gradients in 16 bits, and all ranks sum them in the gradients' own dtype, in rank order. Otherwise
PyTorch's reducer averages its buckets as its ``bf16_compress_hook`` does, with sums in 16 bits too, except for the value of the loss, which
is in a bucket and is reduced separately. Either way all ranks get the same bits. Gradients that have 16 bits already are exchanged
unchanged, and so are sparse and complex gradients and those with an autograd graph.

What is rounded is the contribution of one pass. Accumulated gradients would otherwise be rounded again in each pass, and lose what is small
compared to the sum.
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
    """Return the gradient exchange for `options`, and tell the user how the numbers change.

    `are_alike`: see :class:`CompressedGradients`.
    """
    if options.compress == "none" or num_ranks == 1:
        return GradientExchange()
    say(line(options.compress))
    return CompressedGradients(options.compress, say, are_alike=are_alike)


def line(kind: Compress) -> str:
    """Return the message to the cell about its numbers."""
    return (
        f"--compress {kind}: the engines exchange gradients {_SAID[kind]}, so weights differ from one process's, and with the number of "
        "engines; all engines have the same."
    )


class CompressedGradients(GradientExchange):
    """Exchange gradients in 16 bits, and the value of the loss unchanged.

    Parameters
    ----------
    kind : {"bf16", "fp16"}
    say : callable
        Shows the user a line, once.
    are_alike : bool
        Whether all ranks have the same gradients before a pass, which they do not if each rank's cell sees its own numbers.
    """

    def __init__(self, kind: Compress, say: Callable[[str], None], *, are_alike: bool = True) -> None:
        self._kind, self._type, self._say, self._are_alike = kind, TYPES[kind], say, are_alike
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # gradients to which a pass adds, and copies of them
        self._overflow: torch.Tensor | None = None  # overflow flag on a device, read at the end to avoid a synchronization

    def begins(self, leaves: Sequence[torch.Tensor]) -> None:
        """Copy the gradients to which a pass will add."""
        found = [leaf.grad for leaf in leaves if leaf.grad is not None and self._are_alike]
        dense = [grad for grad in found if grad.layout == torch.strided and grad.dtype in _WIDE and not grad.requires_grad]
        self._before = {id(grad): (grad, grad.clone()) for grad in dense}

    def _numbers_before(self, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Return the values of `gradient` before the pass, if the pass has added to this very tensor."""
        return None if gradient is None else self._before.get(id(gradient), (None, None))[1]

    def average(self, gradients: Sequence[torch.Tensor], value: torch.Tensor | None) -> None:
        """Replace each of `gradients`, and `value`, by the mean over ranks. Collective."""
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
        """Return a communication hook for the buckets of PyTorch's reducer."""

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
            apart = value.clone() if value is not None and is_wide else None  # the loss, which the cell reads in full precision
            if value is not None and is_wide:
                value.zero_()  # it may be out of range in 16 bits
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

        # PyTorch compares the annotations with these objects, not with strings.
        hook.__annotations__ = {"bucket": vars(dist)["GradBucket"], "return": Future[torch.Tensor]}
        return hook

    def _look(self, mean: torch.Tensor) -> None:
        """Check for overflow, which only fp16 has."""
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
        """Report an overflow that was found on a device."""
        if self._overflow is not None:
            self._tell(self._overflow)


def _add_up(flat: torch.Tensor, sent: torch.Tensor, memory: SharedMemory) -> None:
    """Store the sum of all ranks' `sent` in `flat`, summed in its dtype and in rank order."""
    parts = [torch.empty_like(sent) for _ in range(memory.num_ranks)]
    memory.all_gather(parts, sent)
    flat.copy_(parts[0])
    for part in parts[1:]:
        flat.add_(part)

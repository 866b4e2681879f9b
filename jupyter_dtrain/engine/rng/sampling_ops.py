"""PyTorch's random operations, and how to run each for the global batch when a model calls it for the rank's shard.

`global_sampling` uses the table. It lacks draws that Python cannot see (dropout between layers over packed sequences, scripted modules) and
operations whose use of the random stream depends on values (``nn.RReLU``). A model with such draws gets the full batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from ..tensor.memory_layout import blank_like, ones_in
from ..tensor.ops.operands import at

Shape = tuple[int, ...]
Draw = Callable[[Any, tuple[Any, ...], dict[str, Any], "Rows"], Any]


@dataclass(frozen=True)
class Rows:
    """The samples in a draw: along `dim`, the rank's entries in the slice `own`, `total` entries for all ranks."""

    dim: int
    own: slice
    total: int

    def widened(self, shape: Sequence[int]) -> list[int]:
        """Return the shape of the draw for the global batch."""
        return [self.total if dim == self.dim else size for dim, size in enumerate(shape)]

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """Return the rank's rows ``(b, …)`` of a draw ``(B, …)``, a view."""
        return whole[at(self.dim, self.own)]

    def blank(self, part: torch.Tensor, *, with_gaps: bool = False) -> torch.Tensor:
        """Return an uninitialized tensor ``(B, …)`` for the global batch, with the memory layout of `part` ``(b, …)``."""
        return blank_like(part, self.dim, self.total, with_gaps=with_gaps)

    def spread_all(self, value: Any) -> Any:
        """Return `value` ``(b, …)`` as ``(B, …)``, with ones for the other ranks' rows; any other value is returned as it is."""
        size = self.own.stop - self.own.start
        if not isinstance(value, torch.Tensor) or value.dim() <= self.dim or value.shape[self.dim] != size:
            return value
        whole = self.blank(value).fill_(1.0)
        self.of(whole).copy_(value)
        return whole


# -- what draws, and how -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A random operation: a function for the shape that it draws (``None``: nothing), and one that draws for the global batch."""

    shape: Callable[[tuple[Any, ...], dict[str, Any]], Shape | None]
    draw: Draw


def _of_first(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Shape | None:
    return tuple(args[0].shape) if args and isinstance(args[0], torch.Tensor) else None


def _of_sizes(skip: int) -> Callable[[tuple[Any, ...], dict[str, Any]], Shape | None]:
    def shape(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shape | None:
        size = kwargs.get("size", args[skip:])
        if isinstance(size, int):
            size = (size,)
        if len(size) == 1 and isinstance(size[0], tuple | list):
            size = size[0]
        return tuple(size) if all(isinstance(number, int) for number in size) else None

    return shape


def _of_integers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shape | None:
    """Shape of ``torch.randint([low,] high, size)``."""
    size = kwargs.get("size", args[-1] if args else None)
    return tuple(size) if isinstance(size, tuple | list) else None


def _of_dropped(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shape | None:
    given = dict(zip(("input", "p", "training"), args, strict=False)) | kwargs
    tensor = given.get("input")
    training = given.get("training", given.get("train", True))
    return tuple(tensor.shape) if isinstance(tensor, torch.Tensor) and training and given.get("p", 0.5) else None


def _of_attention(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shape | None:
    query, key = args[:2] if len(args) > 1 else (kwargs.get("query"), kwargs.get("key"))
    dropped = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
    if not dropped or query is None or key is None or query.device.type != "cpu":
        return None
    return (*query.shape[:-1], key.shape[-2])


def _like(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], rows: Rows) -> Any:
    tensor, *rest = args
    options = {key: value for key, value in kwargs.items() if key != "requires_grad"}
    drawn = rows.of(func(rows.blank(tensor), *rest, **options)).clone()
    return drawn.requires_grad_() if kwargs.get("requires_grad") else drawn


def _in_place(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], rows: Rows) -> Any:
    tensor, *rest = args
    with torch.no_grad():
        drawn = rows.of(func(rows.blank(tensor, with_gaps=True), *map(rows.spread_all, rest), **kwargs))
    return tensor.copy_(drawn)


def _sized(skip: int) -> Draw:
    def draw(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], rows: Rows) -> Any:
        shape = _of_sizes(skip)(args, kwargs)
        assert shape is not None
        options = {key: value for key, value in kwargs.items() if key not in ("size", "requires_grad")}
        drawn = rows.of(func(*args[:skip], rows.widened(shape), **options)).clone()
        return drawn.requires_grad_() if kwargs.get("requires_grad") else drawn

    return draw


def _integers(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], rows: Rows) -> Any:
    if "size" in kwargs:
        return rows.of(func(*args, **kwargs | {"size": rows.widened(kwargs["size"])})).clone()
    return rows.of(func(*args[:-1], rows.widened(args[-1]), **kwargs)).clone()


def _dropped(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], rows: Rows) -> Any:
    """Dropout: of ones, it returns the scaled mask, which is sliced. Alpha dropout also adds, so it gets the rank's rows among zeros."""
    options = dict(kwargs)
    tensor = args[0] if args else options.pop("input")
    in_place = args[3] if len(args) > 3 else options.pop("inplace", False)
    if func in _ALPHA:
        whole = torch.slice_scatter(rows.blank(tensor).zero_(), tensor, rows.dim, rows.own.start, rows.own.stop)
        dropped = rows.of(func(whole, *args[1:3], **options)).clone()
        return tensor.copy_(dropped) if in_place else dropped
    options |= {"inplace": True} if in_place else {}  # a GPU draws in place, and where there are gaps, in ways of their own
    with torch.no_grad():
        mask = rows.of(func(ones_in(rows.blank(tensor, with_gaps=not in_place)), *args[1:3], **options))
    return tensor.mul_(mask) if in_place else tensor * mask


def _attention(_func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], rows: Rows) -> Any:
    """Attention with dropout: PyTorch's CPU implementation takes a dropout mask, which is drawn here."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, args, strict=False)) | kwargs
    shape = _of_attention(args, kwargs)
    assert shape is not None
    query, dropped = given["query"], given["dropout_p"]
    mask = rows.of(torch.empty(rows.widened(shape), dtype=query.dtype, device=query.device).bernoulli_(1 - dropped)).bool()
    seen = given.get("attn_mask")
    if seen is not None and seen.dtype == torch.bool:  # the function below would add a boolean mask as numbers
        seen = torch.zeros_like(seen, dtype=query.dtype).masked_fill_(seen.logical_not(), -torch.inf)
    return torch.ops.aten._scaled_dot_product_attention_math(
        query,
        given["key"],
        given["value"],
        seen,
        dropped,
        given.get("is_causal", False),
        mask,
        scale=given.get("scale"),
        enable_gqa=given.get("enable_gqa", False),
    )[0]


def _of_layers(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Shape | None:
    """Shape of the dropout between the layers of a recurrent network: (steps, samples, features)."""
    if len(args) != 9 or not isinstance(args[0], torch.Tensor) or args[0].dim() != 3:  # packed sequences, or one sequence
        return None
    rows, _, weights, has_biases, num_layers, dropped, training, bidirectional, batch_first = args
    if num_layers == 1 or not dropped or not training:
        return None
    steps, samples = (rows.shape[1], rows.shape[0]) if batch_first else rows.shape[:2]
    per_direction = len(weights) // num_layers // (2 if bidirectional else 1)
    projected = per_direction > (4 if has_biases else 2)
    features = weights[per_direction - 1].shape[0] if projected else weights[1].shape[1]
    return (steps, samples, features * (2 if bidirectional else 1))


def _layers(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], rows: Rows) -> Any:
    """Run a recurrent network layer by layer, with dropout between them."""
    output, state, weights, has_biases, num_layers, dropped, training, bidirectional, batch_first = args
    shape = _of_layers(args, kwargs)
    assert shape is not None
    states = state if isinstance(state, tuple | list) else (state,)
    directions, per_layer = 2 if bidirectional else 1, len(weights) // num_layers
    last = []
    output = output.transpose(0, 1) if batch_first else output
    for layer in range(num_layers):
        of_layer = [part[layer * directions : (layer + 1) * directions] for part in states]
        own = weights[layer * per_layer : (layer + 1) * per_layer]
        begin = tuple(of_layer) if isinstance(state, tuple | list) else of_layer[0]
        output, *after = func(output, begin, own, has_biases, 1, 0.0, training, bidirectional, False)
        last.append(after)
        if layer < num_layers - 1:
            whole = torch.ones(rows.widened(shape), dtype=output.dtype, device=output.device)
            output = output * rows.of(torch.dropout(whole, dropped, True))
    return (output.transpose(0, 1) if batch_first else output, *(torch.cat(parts) for parts in zip(*last, strict=True)))


def _by_row(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], rows: Rows) -> Any:
    """Draws with a distribution per element: of other ranks' elements only the number matters, not the distribution."""
    with torch.no_grad():
        drawn = func(*map(rows.spread_all, args), **kwargs)
    return rows.of(drawn).clone()


_ALPHA = (F.alpha_dropout, F.feature_alpha_dropout, torch.alpha_dropout, torch.feature_alpha_dropout)
_KINDS: dict[Any, Kind] = {
    **{getattr(torch, name): Kind(_of_first, _like) for name in ("randn_like", "rand_like", "randint_like")},
    **{
        getattr(torch.Tensor, name): Kind(_of_first, _in_place)
        for name in ("normal_", "uniform_", "exponential_", "bernoulli_", "random_", "cauchy_", "geometric_", "log_normal_")
    },
    **{getattr(torch, name): Kind(_of_sizes(0), _sized(0)) for name in ("randn", "rand")},
    torch.randint: Kind(_of_integers, _integers),
    torch.normal: Kind(_of_sizes(2), _sized(2)),
    **{
        function: Kind(_of_dropped, _dropped)
        for function in (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, torch.dropout, torch.feature_dropout, *_ALPHA)
    },
    F.scaled_dot_product_attention: Kind(_of_attention, _attention),
    **{function: Kind(_of_layers, _layers) for function in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)},
    **{
        function: Kind(_of_first, _by_row)
        for function in (torch.bernoulli, torch.Tensor.bernoulli, torch.multinomial, torch.Tensor.multinomial)
    },
}
_BY_ELEMENT = Kind(_of_first, _by_row)
_BY_VALUE = frozenset((torch.randperm, torch.poisson, torch.binomial, torch._standard_gamma, torch._sample_dirichlet))
DROPS = frozenset(function.__name__ for function, kind in _KINDS.items() if kind.draw in (_dropped, _attention, _layers))


def draws_by_value(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether `func` draws a permutation, or its use of the stream depends on values, so that a shard is not enough."""
    training = args[3] if len(args) > 3 else kwargs.get("training")
    return func in _BY_VALUE or (func in (F.rrelu, torch.rrelu, torch.rrelu_) and bool(training))


def kind_of(func: Any, args: tuple[Any, ...]) -> Kind | None:
    """Return how `func` draws, ``None`` if it does not, or by none of the known ways."""
    if func is torch.normal and any(isinstance(arg, torch.Tensor) for arg in args[:2]):
        return _BY_ELEMENT if all(isinstance(arg, torch.Tensor) and arg.shape == args[0].shape for arg in args[:2]) else None
    return _KINDS.get(func)

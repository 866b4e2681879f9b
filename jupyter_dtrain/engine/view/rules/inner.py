"""Operations along other dims than the batch that leave the dims where they are: shifts, windows, triangles, transforms.

What they make of a dim may be longer or shorter, a dim may be gone or come at the end; the batch is untouched.
"""

from __future__ import annotations

from typing import Any

from ..placements import Shard, place
from .dispatch import NeedsWhole, Rules, ndim_of, tensors_in, the_shard

_LAST, _LAST_TWO, _ALL = (None, "", -1), (None, "", (-2, -1)), None
_DIMS: dict[str, tuple[tuple[int | None, str, Any], ...]] = {  # where an operation is told its dims: position, keyword, and which else
    "unfold": ((1, "dimension", _ALL),),
    "roll": ((2, "dims", _ALL),),
    "diff": ((2, "dim", -1),),
    "trapezoid": ((None, "dim", -1),),
    "trapz": ((None, "dim", -1),),
    "cumulative_trapezoid": ((None, "dim", -1),),
    "diagonal": ((2, "dim1", 0), (3, "dim2", 1)),
    "fliplr": ((None, "", 1),),
    "flipud": ((None, "", 0),),
    "diag_embed": (_LAST,),
    "rot90": ((2, "dims", (0, 1)),),
    "tril": (_LAST_TWO,),
    "triu": (_LAST_TWO,),
    "tril_": (_LAST_TWO,),
    "triu_": (_LAST_TWO,),
    "view_as_complex": (_LAST,),
    "view_as_real": (),
    "index_fill": ((1, "dim", _ALL),),
    "index_fill_": ((1, "dim", _ALL),),
    **{f"fft_{name}": ((2, "dim", -1),) for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")},
    **{f"fft_{name}2": ((2, "dim", (-2, -1)),) for name in ("fft", "ifft", "rfft", "irfft")},
    **{f"fft_{name}n": ((2, "dim", _ALL),) for name in ("fft", "ifft", "rfft", "irfft")},
    **{f"fft_{name}": ((1, "dim", _ALL),) for name in ("fftshift", "ifftshift")},
}
_LOSE = frozenset(("diagonal", "trapezoid", "trapz"))  # the dims that they go along
_WITH_INDEX = frozenset(("index_fill", "index_fill_"))
NAMES = " ".join(name for name in _DIMS if not name.startswith("fft_"))
FFT_NAMES = " ".join(name.removeprefix("fft_") for name in _DIMS if name.startswith("fft_"))


def inner(rules: Rules, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation along inner dims on parts."""
    tensor, placement = the_shard(args, kwargs)
    name = func.__name__
    if "out" in kwargs or (name not in _WITH_INDEX and tensors_in((*args[1:], *kwargs.values()))):
        raise NeedsWhole
    if name == "diag_embed" and (len(args) > 1 or kwargs):
        raise NeedsWhole
    ndim = ndim_of(tensor)
    touched: list[int] = []
    for position, keyword, default in _DIMS[name]:
        given = kwargs.get(keyword, args[position] if position is not None and len(args) > position else default)
        values = (given,) if isinstance(given, int) else given
        if not isinstance(values, list | tuple) or any(not -ndim <= value < ndim for value in values):
            raise NeedsWhole  # all dims; or an error, and PyTorch's own
        touched += [value % ndim for value in values]
    if placement.dim in touched:
        raise NeedsWhole
    result = rules.local(func, args, kwargs)
    if result is tensor:
        return result
    lost = sum(dim < placement.dim for dim in touched) if name in _LOSE else 0
    return place(result, Shard(placement.dim - lost, placement.share, placement.unit))

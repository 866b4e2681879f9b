"""Constructors that make a tensor from another one without calling ``__torch_function__``.

``torch.tensor(x)``, ``torch.LongTensor(x)`` and the ``Variable(x)`` of older notebooks read the memory of `x` directly. For a global
tensor that is the rank's part alone. These constructors are therefore replaced during a run, and so is ``z.set_(x)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.autograd.variable import VariableMeta
from torch.utils._device import _device_constructors

from ...system.patches import patched
from .placement_types import GlobalState, GlobalTensor

_OF_TYPES = [name for name in dir(torch) if name.endswith("Tensor") and type(getattr(torch, name)).__name__ == "tensortype"]
_device_constructors()  # fills its cache with PyTorch's own functions, which `with torch.device(…)` acts on, before they are replaced
_SPARSE = [name for name in dir(torch) if name.startswith("sparse_") and name.endswith("_tensor")]


@contextmanager
def watched_constructors(whole: Callable[[Any], Any]) -> Iterator[None]:
    """Replace the constructors by ones that accept global tensors, until the end of the ``with`` block.

    Parameters
    ----------
    whole : callable
        Returns a value with each global tensor in it replaced by its full tensor.
    """

    def on_wholes(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def constructor(*args: Any, **kwargs: Any) -> Any:
            return original(*whole(args), **whole(kwargs))

        return constructor

    def of_first(original: Callable[..., Any], *, copy: bool) -> Callable[..., Any]:
        @wraps(original)
        def constructor(*args: Any, **kwargs: Any) -> Any:
            data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
            if not isinstance(data, GlobalTensor):
                return original(*args, **kwargs)
            made = data.detach() if copy else data
            dtype, device = kwargs.get("dtype") or data.dtype, kwargs.get("device") or data.device
            made = made.to(dtype=dtype, device=device, copy=copy or bool(kwargs.get("copy")))
            return made.requires_grad_() if kwargs.get("requires_grad") else made

        return constructor

    def variable(cls: Any, *args: Any, **kwargs: Any) -> Any:
        data = args[0] if args else kwargs.get("data")
        if not isinstance(data, GlobalTensor):
            return type.__call__(cls, *args, **kwargs)
        return data.detach().requires_grad_(bool(args[1] if len(args) > 1 else kwargs.get("requires_grad", False)))

    def init(self: torch.Tensor, *args: Any, **_: Any) -> None:
        if args and isinstance(args[0], GlobalTensor) and type(self) is torch.Tensor:
            self.__class__ = GlobalTensor  # PyTorch has made `self` from the rank's part: it shares its memory and graph
            self._state = GlobalState(args[0].placement)  # type: ignore[attr-defined]

    new_parameter = nn.Parameter.__new__

    def parameter(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return new_parameter(cls, *whole(args), **whole(kwargs))

    set_memory = torch.Tensor.set_

    @wraps(set_memory)
    def set_(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if not isinstance(self, GlobalTensor):
            return set_memory(self, *whole(args), **whole(kwargs))
        if len(args) != 1 or kwargs or not isinstance(args[0], torch.Tensor):
            raise RuntimeError(
                "A tensor that spans the ranks was given other memory by `set_`. Give the name another tensor instead: `x = …`."
            )
        self.data = args[0]
        return self

    with ExitStack() as stack:
        for target, name, replacement in (
            (torch, "tensor", of_first(torch.tensor, copy=True)),
            (torch, "as_tensor", of_first(torch.as_tensor, copy=False)),
            (torch, "asarray", of_first(torch.asarray, copy=False)),
            (VariableMeta, "__call__", variable),
            (torch.Tensor, "__init__", init),
            (torch.Tensor, "set_", set_),
            (nn.Parameter, "__new__", parameter),
            *((torch, name, _of_type(getattr(torch, name), whole)) for name in _OF_TYPES),
            *((torch, name, on_wholes(getattr(torch, name))) for name in _SPARSE),
        ):
            stack.enter_context(patched(target, name, replacement))
        yield


class _Constructor(type):
    """Metaclass of the stand-ins for classes like ``torch.LongTensor``, also in ``isinstance`` and ``x.type(torch.LongTensor)``."""

    __wrapped__: Any
    _whole: Callable[[Any], Any]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.__wrapped__(*cls._whole(args), **cls._whole(kwargs))

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.__wrapped__)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.__wrapped__, name)

    def __hash__(cls) -> int:
        return hash(cls.__wrapped__)

    def __eq__(cls, other: object) -> bool:
        return other is cls.__wrapped__ or other is cls


def _of_type(original: Any, whole: Callable[[Any], Any]) -> Any:
    members = {"__module__": "torch", "__wrapped__": original, "_whole": staticmethod(whole)}
    return _Constructor(f"torch.{original.__name__}", (), members)

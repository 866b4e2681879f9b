"""Plans that classes ship: `_tp_plan`, `tp_plan` of a model, `base_model_tp_plan` of its config, as Hugging Face's transformers do.

A plan says by name which linear layers are computed by columns and which by rows. Of those in one module, with nothing beside them but
activations and dropout (an MLP), the results go from one to the other. Attention, which may hand its parts to a cache, is left to rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from torch import nn

from .elementwise import is_elementwise
from .rule import Pair

_BY_COLUMNS, _BY_ROWS = "colwise", "rowwise"


def planned_pairs(model: nn.Module) -> Iterator[tuple[nn.Module, Pair]]:
    """Yield the modules in `model` whose layers are a pair by a plan, with that."""
    found: dict[int, str] = {}
    for part in model.modules():
        plan = _plan_of(part)
        for name, layer in part.named_modules() if plan else ():
            for pattern, how in plan.items():
                if fnmatchcase(name, pattern):
                    found.setdefault(id(layer), how)
    for part in model.modules() if found else ():
        pair = _pair_in(part, found)
        if pair is not None:
            yield part, pair


def _plan_of(module: nn.Module) -> dict[str, str]:
    plan: dict[str, str] = {}
    for owner, name in ((getattr(module, "config", None), "base_model_tp_plan"), (module, "_tp_plan"), (module, "tp_plan")):
        found = getattr(owner, name, None)
        if isinstance(found, Mapping):
            plan.update({str(key): str(value) for key, value in found.items()})
    return plan


def _pair_in(module: nn.Module, plan: Mapping[int, str]) -> Pair | None:
    firsts: list[nn.Module] = []
    between: list[nn.Module] = []
    seconds: list[nn.Module] = []
    for part in module._modules.values():
        how = plan.get(id(part))
        if part is None:
            continue
        if how in (_BY_COLUMNS, _BY_ROWS):
            (firsts if how == _BY_COLUMNS else seconds).append(part)
        elif is_elementwise(part):
            between.append(part)
        else:
            return None
    has_activation = any(type(part) is not nn.Dropout for part in between)
    is_pair = firsts and len(seconds) == 1 and has_activation and not module._parameters
    return Pair(tuple(firsts), tuple(between), seconds[0]) if is_pair else None

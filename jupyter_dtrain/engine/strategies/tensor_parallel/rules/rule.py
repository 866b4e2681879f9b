"""The rules that there are, and which of them a module has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Pair:
    """Linear layers that are computed by columns, and the one that takes nothing but these columns, which is computed by rows.

    Attributes
    ----------
    firsts : tuple of nn.Module
        Each is given the same; they are called before `second`. Where there are several, the block multiplies or adds their results.
    between : tuple of nn.Module
        What their results go through, each number by itself.
    second : nn.Module
    heads : tuple of int
        Of an attention: how many heads each of `firsts` computes, of which each rank is to have as many as the others. Empty: each number
        of what is between belongs to one of `second`'s columns.
    groups : int
        How many results of the same size the only one of `firsts` computes, one behind the other: 3 where it has queries, keys and values.
    width : str
        The attribute of the block that says how wide each of these is. Empty: there is none.
    """

    firsts: tuple[nn.Module, ...]
    between: tuple[nn.Module, ...]
    second: nn.Module
    heads: tuple[int, ...] = ()
    groups: int = 1
    width: str = ""


@dataclass(frozen=True)
class Rule:
    """What is known of the ``forward`` of a class.

    Attributes
    ----------
    kind : str
        The class's dotted name.
    pairs : callable
        Returns the pairs of a module of that class, of its own submodules.
    methods : tuple of str
        Which of its methods the rule is about: a class derived from it that has another one is not meant.
    holds_for : callable
        Looks whether the pairs are some in a call with such arguments.
    drops : callable
        Looks whether ``F.scaled_dot_product_attention`` is to drop some weights in a call now.
    """

    kind: str
    pairs: Callable[[nn.Module], Sequence[Pair]]
    methods: tuple[str, ...] = ("forward",)
    holds_for: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], bool] = lambda _module, _args, _kwargs: True
    drops: Callable[[nn.Module], bool] = lambda _module: False


_RULES: dict[str, Rule] = {}


def register(rule: Rule) -> None:
    """Let modules of a class have `rule`."""
    _RULES[rule.kind] = rule


def rule_of(module: nn.Module) -> Rule | None:
    """Return the rule for a module's class, or for one that it is derived from."""
    return next((rule for base in type(module).__mro__ if (rule := _RULES.get(f"{base.__module__}.{base.__qualname__}"))), None)


def pairs_of(module: nn.Module) -> Sequence[Pair]:
    """Return the pairs that the rule of a module's class finds in it."""
    rule = rule_of(module)
    if rule is None:
        return ()
    base = next(base for base in type(module).__mro__ if f"{base.__module__}.{base.__qualname__}" == rule.kind)
    is_meant = all(getattr(type(module), name) is getattr(base, name) and name not in vars(module) for name in rule.methods)
    return rule.pairs(module) if is_meant else ()

"""The rules that there are, and which of them a module has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
    """

    firsts: tuple[nn.Module, ...]
    between: tuple[nn.Module, ...]
    second: nn.Module


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
    """

    kind: str
    pairs: Callable[[nn.Module], Sequence[Pair]]
    methods: tuple[str, ...] = ("forward",)


_RULES: dict[str, Rule] = {}


def register(rule: Rule) -> None:
    """Let modules of a class have `rule`."""
    _RULES[rule.kind] = rule


def has_rule(module: nn.Module) -> bool:
    """Return whether there is a rule for a module's class."""
    return any(f"{base.__module__}.{base.__qualname__}" in _RULES for base in type(module).__mro__)


def pairs_of(module: nn.Module) -> Sequence[Pair]:
    """Return the pairs that the rule of a module's class finds in it."""
    for base in type(module).__mro__:
        rule = _RULES.get(f"{base.__module__}.{base.__qualname__}")
        if rule is not None:
            is_meant = all(getattr(type(module), name) is getattr(base, name) and name not in vars(module) for name in rule.methods)
            return rule.pairs(module) if is_meant else ()
    return ()

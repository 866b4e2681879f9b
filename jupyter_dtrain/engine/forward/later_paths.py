"""Paths of a model's code that its first calls did not take, and that may mix samples when a later call takes them.

Which expressions mix samples, and which branches no flag tells of, is found from the source (`number_branches`). A function may also be
chosen: by number from a list, by key from a dict, by a computed name. So may be a module. What is held so, mixes samples and has not been
called is such a path too.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from torch import nn

from ...analysis.function_source import Function
from ...analysis.number_branches import Branches, Known
from ...analysis.sample_mixing import mixes, mixing
from ..module_tree import modules_in
from ..user_frames import is_users_module
from .code_changes import CONTAINERS, MOST_ITEMS
from .model_texts import ModelTexts
from .paths_taken import PathsTaken

_FLAGS = (bool, str, type(None))


class LaterPaths:
    """What may be run in later calls of a model for the first time, and mix samples.

    Parameters
    ----------
    model : nn.Module

    Attributes
    ----------
    places : list of callable
        As of `ModelTexts`.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = modules_in(model)
        found = ModelTexts(self._modules)
        self._texts, self.places = found.texts, found.places
        loads = [node for text in self._texts.values() for node in ast.walk(text.tree)]
        called = {id(node.func) for node in loads if isinstance(node, ast.Call)}
        self._as_values = {
            node.id if isinstance(node, ast.Name) else node.attr
            for node in loads
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load) and id(node) not in called
        }
        self._held_modules = self._find_held_modules()
        known = self._known()
        branches = [(text.filename, Branches(text.tree, known, text.names)) for text in self._texts.values()]
        self._turns = any(of_text.turns() for _, of_text in branches)
        self._nodes = {(filename, id(node)): node for filename, of_text in branches for node in of_text.mixing()}
        self._functions = list(self._chosen(known))
        self._unused = [module for module in self._held_modules if self._module_mixes(module)]

    def files(self) -> set[str]:
        """Return the files in which the run expressions have to be noted; none if nothing may mix samples later on."""
        if not (self._nodes or self._functions or self._unused):
            return set()
        return {text.filename for text in self._texts.values()}

    def remain(self, taken: PathsTaken) -> bool:
        """Return whether something that mixes samples has not been run yet."""
        return (
            self._turns
            or any(not taken.has(filename, node) for (filename, _), node in self._nodes.items())
            or any(not any(taken.has(filename, node) for node in nodes) for filename, nodes in self._functions)
            or any(id(module) not in taken.modules for module in self._unused)
        )

    def _find_held_modules(self) -> list[nn.Module]:
        """Return the modules that code may choose: those in containers, and those that it names without calling them there."""
        found: dict[int, nn.Module] = {}
        for module in self._modules:
            if isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential):
                if type(module).__call__ is nn.Module.__call__:
                    found.update((id(child), child) for child in module.children())
                continue
            for name, child in module.named_children():
                if name in self._as_values and not isinstance(child, nn.ModuleList | nn.ModuleDict | nn.Sequential):
                    found[id(child)] = child
            for value in vars(module).values():
                if isinstance(value, CONTAINERS) and value is not module._modules:
                    items = value.values() if isinstance(value, dict) else value
                    found.update((id(item), item) for item in islice(items, MOST_ITEMS) if isinstance(item, nn.Module))
        return list(found.values())

    def _known(self) -> Known:
        called: set[str] = set()
        stored = {
            node.attr
            for text in self._texts.values()
            if "__init__" not in text.names
            for node in ast.walk(text.tree)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        }
        values: defaultdict[str, set[bool]] = defaultdict(set)
        kinds = {kind for module in self._modules for kind in type(module).__mro__ if is_users_module(kind.__module__)}
        for holder in (*self._modules, *kinds):
            for name, value in vars(holder).items():
                if isinstance(value, _FLAGS):
                    values[name].add(bool(value))
        settled = {name: held for name, held in values.items() if name not in stored and name != "training"}
        off, on = ({name for name, held in settled.items() if held == {wanted}} for wanted in (False, True))
        flags = {*settled, "training"}
        children = [(name, child) for module in self._modules for name, child in module.named_children()]
        own = {name for name, _ in children} | {name for text in self._texts.values() for name in text.names}
        found: set[str] | None = None
        while found is None or not found <= called:
            called |= found or set()
            self._mixing = {code for code, text in self._texts.items() if mixes(text.tree, called, own)}
            found = {name for code in self._mixing for name in self._texts[code].names} - {"forward"}
            found |= {name for name, child in children if self._module_mixes(child)}
        known = Known(called=called, own=own, flags=flags, off=off, on=on, stored=stored)
        given = {name for text in self._texts.values() for name in Branches(text.tree, known, text.names).calls_with_numbers()}
        return replace(known, given_numbers=given)

    def _module_mixes(self, module: nn.Module) -> bool:
        if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
            return not module.batch_first
        if isinstance(module, nn.Softmax | nn.LogSoftmax | nn.Softmin):
            return module.dim in (None, 0)
        return getattr(module.forward, "__code__", None) in self._mixing

    def _chosen(self, known: Known) -> Iterator[tuple[str, list[ast.AST]]]:
        """Yield functions that code may choose and that mix samples, each as the expressions that do so and their file."""
        names = Counter(name for text in self._texts.values() for name in text.names)
        chosen = (self._as_values | {name for name, count in names.items() if count > 1}) - {"forward"}
        for text in self._texts.values():
            if text.is_held or not text.names.isdisjoint(chosen):
                nodes = list(mixing(text.tree, known.called, known.own))
                if nodes and not text.is_forward:
                    yield text.filename, nodes
            own = next((node for node in ast.walk(text.tree) if isinstance(node, Function)), None)
            for inner in ast.walk(text.tree):
                if isinstance(inner, Function) and inner is not own:
                    name = None if isinstance(inner, ast.Lambda) else inner.name
                    nodes = list(mixing(inner, known.called, known.own))
                    if nodes and (name is None or name in self._as_values):
                        yield text.filename, nodes

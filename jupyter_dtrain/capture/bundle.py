"""Pack the notebook's values into one pickle; raise an error that names a value which cannot be sent.

Functions and classes of the notebook are pickled by value, and so are modules in its folder: engines always run their current text,
including edits since the import.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from ..analysis.dynamic_names import with_dynamic_names
from ..analysis.imports import asked_for, modules_beside, outdated
from ..analysis.names import CellNames
from ..analysis.reached_names import words_of
from ..errors import CaptureError
from ..integrations.registry import look
from ..serialization.array_windows import Windows
from ..serialization.cached_functions import lines_about_caches
from ..serialization.custom_reduce import go_back
from ..serialization.frame_references import referenced
from ..serialization.global_hooks import line_about_hooks
from ..serialization.leaves import trackable, tuples_in
from ..serialization.library_changes import packages_of
from ..serialization.library_objects import LibraryObjects
from ..serialization.library_state import LibraryState, library_states, stays
from ..serialization.module_reducers import by_value
from ..serialization.operator_reducers import operators
from ..serialization.pickler import Packed, Packer
from ..serialization.unpickler import Unpacker
from ..system.interpreter import collection_paused, deep_recursion
from .attached import Attached, attached
from .import_effects import classes_of, imported_for_effect, put_there_by_calls
from .library_patches import Patch, patches, text_of
from .shell_state import own_magics
from .unsendable import Search, message_of


@dataclass
class Bundle:
    """The notebook's values as they are sent.

    Attributes
    ----------
    packed : Packed
        A dict of the values by name; then tuples of modules that the cell imports and of library states, ended by an empty one; then the
        list `tracked`.
    tracked : list of object
        The notebook's objects of which the engines get copies, in the order in which both sides count them.
    names : CellNames
        The names asked for, and names that the code looks up by a string.
    left_out : dict of str to str
        Names that may be read but could not be sent → the reason.
    seen : list of object
        Every object that is in `packed`.
    own_modules : frozenset of str
        Modules in the notebook's folder, which are pickled by value.
    lines : list of str
        Messages about settings in library objects, and about caches of functions, that cannot be sent.
    unsent : frozenset of str
        The notebook's names that the cell may delete and always binds before it reads them.
    imported : frozenset of str
        Of `own_modules`, those whose files are as they were when the notebook got them. A cell that imports another one brings it.
    """

    packed: Packed
    tracked: list[object]
    names: CellNames
    left_out: dict[str, str] = field(default_factory=dict)
    seen: list[object] = field(default_factory=list)
    own_modules: frozenset[str] = frozenset()
    lines: list[str] = field(default_factory=list)
    unsent: frozenset[str] = frozenset()
    imported: frozenset[str] = frozenset()


def pack(names: CellNames, namespace: dict[str, Any], *, by_text: bool = True) -> Bundle:
    """Pickle the values of `names` in `namespace`; if `by_text`, also of names that their code looks up by a string.

    Raises
    ------
    CaptureError
        A value that the cell needs cannot be sent. The message names it and the part of it that is the cause.
    """
    look()
    bundle = _Bundler(names, namespace).pack()
    if not by_text or (all_names := with_dynamic_names(names, bundle.seen, namespace)) is names:
        return bundle
    return _Bundler(all_names, namespace).pack()


class _Bundler:
    """Pickle values and what is sent with them; repeat this when objects turn out to be sent differently or not at all."""

    def __init__(self, names: CellNames, namespace: dict[str, Any]) -> None:
        self._names, self._namespace = names, namespace
        self._values = {name: namespace[name] for name in names if name in namespace}
        self._modules = modules_beside(Path.cwd())
        self._imports = [sys.modules[name] for name in names.imports if name in sys.modules]
        self._windows = Windows()
        self._library = LibraryObjects(self._values.values(), partial(_words, namespace, self._modules))
        self._library.add(packages_of([*self._values.values(), *self._imports]))
        self._patches: list[object] = []  # that the notebook has made in libraries
        self._magics = own_magics(names.magics)
        self._by_calls: dict[tuple[type, str], Patch] = {}
        self._attached: dict[tuple[str, bool, int], Attached] = {}
        # Of the last attempt: modules that were sent along, and states of libraries.
        self._imported: list[ModuleType] = []
        self._states: list[object] = []
        self._left_out: dict[str, str] = {}
        self._refused: dict[int, object] = {}

    def pack(self) -> Bundle:
        """Return what can be sent; raise a `CaptureError` if the cell needs more."""
        with by_value(self._modules):
            self._patches += (*operators(), *patches(self._namespace, self._modules))
            try:
                return self._packed()
            except Exception as error:
                if go_back(lambda obj: self._why_not(obj) is not None):
                    return _Bundler(self._names, self._namespace).pack()
                # The search for the cause runs only after a failure, so that values are normally pickled once.
                attributes_stay = self._library.leave(lambda value: self._why_not(value) is not None)
                self._leave_values(error)
                self._leave_modules()
                if not (self._leave_states() or self._left_out or attributes_stay):
                    raise CaptureError(f"the cell's values cannot be sent together: {error}", name="") from error
                return self._packed_without_states()

    def _packed_without_states(self) -> Bundle:
        """Return what can be sent of the values that are left; what they need of libraries is known once they are pickled."""
        try:
            return self._packed()
        except Exception as error:
            if not self._leave_states():
                raise CaptureError(f"the cell's values cannot be sent together: {error}", name="") from error
            return self._packed()

    def _packed(self) -> Bundle:
        while (bundle := self._attempt()) is None:
            pass
        return bundle

    def _attempt(self) -> Bundle | None:
        """Pickle everything; return ``None`` if only now an object is known to be a library's, or arrays to share memory."""
        with collection_paused():
            whole = self._packer()
            whole.dump(dict(self._values))
            self._imported = []
            while more := self._asked_for(whole.seen):
                self._imported += more
                whole.dump(tuple(more))
            used = [*whole.seen, *self._imports]
            if new := self._library.add(packages_of(used)):
                if not new.isdisjoint(map(id, whole.seen)):
                    return None
                whole.refer(self._library.references)
            self._states = [state for state in self._states_with(used) if id(state) not in self._refused]
            if going_along := (*self._states, *self._patches):
                whole.dump(going_along)
            whole.dump(())  # ends the list of tuples
            tracked = trackable([*whole.seen, *self._library.objects])
            with deep_recursion():
                tracked += tuples_in(tracked)
            whole.dump(tracked)
            if self._windows.grow():
                return None
        own_modules = frozenset(module.__name__ for module in self._modules)
        lines = [*self._library.lines, *lines_about_caches(whole.seen)]
        unsent = frozenset(name for name in self._names.deleted.difference(self._names) if name in self._namespace)
        imported = own_modules - outdated(self._modules)
        return Bundle(whole.packed(), tracked, self._names, self._left_out, whole.seen, own_modules, lines, unsent, imported)

    def _packer(self) -> Packer:
        packer = Packer(namespace=self._namespace, modules=self._modules, words=self._names.attributes, windows=self._windows)
        packer.refer(self._library.references)
        return packer

    def _asked_for(self, seen: list[object]) -> list[ModuleType]:
        """Return the modules that the cell's imports and the objects `seen` ask for and that were not sent yet."""
        modules = asked_for(self._names.imports, seen, self._modules)
        return [module for module in modules if module not in self._imported and module.__name__ not in self._left_out]

    def _states_with(self, used: list[object]) -> list[object]:
        """Return the changed library state for objects in use: effects of imports, functions put there by calls, kept state, settings."""
        kept = library_states(used, but={state.place for state in self._library.states})
        classes = classes_of(used)
        put = [self._by_calls.setdefault((patch.owner, patch.name), patch) for patch in put_there_by_calls(classes)]
        effects = imported_for_effect(self._namespace, used, classes, self._modules)
        handlers = [self._attached.setdefault(one.place, one) for one in attached(used)]
        return [*effects, *put, *kept, *self._library.states, *self._magics, *handlers, *referenced(used)]

    def _why_not(self, value: object) -> str | None:
        return Search(self._packer).why_not(value)

    def _leave_values(self, error: Exception) -> None:
        """Find the names at fault one by one, and leave them out; raise a `CaptureError` for a name that the cell needs."""
        for name in list(self._values):
            reason = self._why_not(self._values[name])
            if reason is None:
                continue
            if name in self._names.needed:
                raise CaptureError(message_of(name, self._names.needed[name], self._values[name], reason), name=name) from error
            self._left_out[name] = reason
            del self._values[name]

    def _leave_modules(self) -> None:
        """Leave out modules that cannot be pickled; engines import them from their files instead."""
        for module in self._imported:
            if (reason := self._why_not(module)) is not None:
                self._left_out[module.__name__] = reason

    def _leave_states(self) -> bool:
        """Leave out library states that cannot be pickled, of which engines keep their own; return whether there are any."""
        stay = [state for state in (*self._states, *self._patches) if self._why_not(state) is not None]
        stays(stay)
        self._library.lines += line_about_hooks(state.place for state in stay if isinstance(state, LibraryState))
        self._refused.update((id(state), state) for state in stay)
        self._patches = [state for state in self._patches if id(state) not in self._refused]
        for state in self._library.states.copy():
            if id(state) in self._refused:
                self._library.drop(state)
        return bool(stay)


def _words(namespace: dict[str, Any], modules: list[ModuleType]) -> frozenset[str]:
    """Return the words in the notebook's code and in modules of its folder."""
    texts = [text for text in namespace.get("In", ()) if isinstance(text, str)]
    return frozenset().union(*map(words_of, (*texts, *map(text_of, modules))))


def unpack(unpacker: Unpacker) -> tuple[dict[str, Any], list[object]]:
    """Return the values by name and the tracked objects of a bundle's `packed`."""
    with collection_paused():
        values = unpacker.load()
        while unpacker.load() != ():
            pass  # they are among the tracked objects
        return values, unpacker.load()

"""From names to what is sent: the notebook's values in one pickle, and an error that names what cannot be.

Functions and classes defined in the notebook travel by value, and so do modules that lie beside it: engines then
always run the text as it is now, edited a moment ago or not.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from ..analysis.dynamic_names import with_dynamic_names
from ..analysis.imports import asked_for, modules_beside
from ..analysis.names import CellNames
from ..analysis.reached_names import words_of
from ..errors import CaptureError
from ..integrations.registry import look
from ..serialization.array_windows import Windows
from ..serialization.custom_reduce import go_back
from ..serialization.leaves import trackable
from ..serialization.library_changes import packages_of
from ..serialization.library_objects import LibraryObjects
from ..serialization.library_state import library_states, stays
from ..serialization.operator_reducers import operators
from ..serialization.pickler import Packed, Packer
from ..serialization.unpickler import Unpacker
from ..system.interpreter import collection_paused
from .import_effects import classes_of, imported_for_effect, put_there_by_calls
from .library_patches import Patch, patches, text_of
from .unsendable import Search, message_of


@dataclass
class Bundle:
    """The notebook's values as they are sent.

    Attributes
    ----------
    packed : Packed
        A dict of the values by name; tuples of what goes along, modules that the cell imports and states of libraries, and an empty one;
        and the list `tracked`.
    tracked : list of object
        The notebook's objects that the engines work on copies of, in the order that both sides count them.
    names : CellNames
        What was asked for, with the names that code looks up by a text.
    left_out : dict of str to str
        Names that may be read but could not be sent, with the reason.
    seen : list of object
        Every object that is in `packed`.
    own_modules : frozenset of str
        Modules that lie beside the notebook: what is in `packed` of them is there by value.
    lines : list of str
        About settings in objects of libraries that cannot be sent.
    """

    packed: Packed
    tracked: list[object]
    names: CellNames
    left_out: dict[str, str] = field(default_factory=dict)
    seen: list[object] = field(default_factory=list)
    own_modules: frozenset[str] = frozenset()
    lines: list[str] = field(default_factory=list)


def pack(names: CellNames, namespace: dict[str, Any], *, by_text: bool = True) -> Bundle:
    """Pickle the values of `names` in `namespace`, and unless `by_text` is false those of names that their code looks up by a text.

    Raises
    ------
    CaptureError
        A value that the cell needs cannot be sent. The message names it and what in it is the cause.
    """
    look()
    bundle = _pack(names, namespace)
    if not by_text or (all_names := with_dynamic_names(names, bundle.seen, namespace)) is names:
        return bundle
    return _pack(all_names, namespace)


def _pack(names: CellNames, namespace: dict[str, Any]) -> Bundle:
    values = {name: namespace[name] for name in names if name in namespace}
    left_out: dict[str, str] = {}
    modules = modules_beside(Path.cwd())
    imported: list[ModuleType] = []
    states: list[object] = []
    of_libraries: list[object] = []
    by_calls: dict[tuple[type, str], Patch] = {}
    refused: dict[int, object] = {}
    imports = [sys.modules[name] for name in names.imports if name in sys.modules]
    texts = [text for text in namespace.get("In", ()) if isinstance(text, str)]
    librarys = LibraryObjects(values.values(), lambda: frozenset().union(*map(words_of, (*texts, *map(text_of, modules)))))
    librarys.add(packages_of([*values.values(), *imports]))

    windows = Windows()

    def packer() -> Packer:
        packer = Packer(namespace=namespace, modules=modules, words=names.attributes, windows=windows)
        packer.refer(librarys.references)
        return packer

    def packed() -> Bundle:
        while (bundle := attempt()) is None:
            pass
        return bundle

    def attempt() -> Bundle | None:
        """Pickle everything; return nothing where it is known only now that an object is a library's, or that arrays share memory."""
        with collection_paused():
            whole = packer()
            whole.dump(dict(values))
            imported.clear()
            while more := [m for m in asked_for(names.imports, whole.seen, modules) if m not in imported and m.__name__ not in left_out]:
                imported.extend(more)
                whole.dump(tuple(more))
            used = [*whole.seen, *imports]
            if new := librarys.add(packages_of(used)):
                if not new.isdisjoint(map(id, whole.seen)):
                    return None
                whole.refer(librarys.references)
            kept = library_states(used, but={state.place for state in librarys.states})
            classes = classes_of(used)
            put = [by_calls.setdefault((patch.owner, patch.name), patch) for patch in put_there_by_calls(classes)]
            of_libraries[:] = [*imported_for_effect(namespace, used, classes, modules), *put, *kept, *librarys.states]
            of_libraries[:] = [state for state in of_libraries if id(state) not in refused]
            if going_along := (*of_libraries, *states):
                whole.dump(going_along)
            whole.dump(())  # there are no more
            tracked = trackable([*whole.seen, *librarys.objects])
            whole.dump(tracked)
            if windows.grow():
                return None
        own_modules = frozenset(module.__name__ for module in modules)
        return Bundle(whole.packed(), tracked, names, left_out, whole.seen, own_modules, librarys.lines)

    with _by_value(modules):
        states += (*operators(), *patches(namespace, modules))
        try:
            return packed()
        except Exception as error:
            if go_back(lambda obj: Search(packer).why_not(obj) is not None):
                return _pack(names, namespace)
            attributes_stay = librarys.leave(lambda value: Search(packer).why_not(value) is not None)
            # Find the names at fault, one by one: only now, so that what can be sent is pickled once.
            for name in list(values):
                reason = Search(packer).why_not(values[name])
                if reason is None:
                    continue
                if name in names.needed:
                    raise CaptureError(message_of(name, names.needed[name], values[name], reason), name=name) from error
                left_out[name] = reason
                del values[name]
            for module in imported:  # or else the engine reads its file
                if (reason := Search(packer).why_not(module)) is not None:
                    left_out[module.__name__] = reason
            stay = [state for state in (*of_libraries, *states) if Search(packer).why_not(state) is not None]  # the engine has its own
            stays(stay)
            refused.update((id(state), state) for state in stay)
            states[:] = [state for state in states if id(state) not in refused]
            for state in librarys.states.copy():
                if id(state) in refused:
                    librarys.drop(state)
            if not (left_out or stay or attributes_stay):
                raise CaptureError(f"the cell's values cannot be sent together: {error}", name="") from error
            return packed()


def unpack(unpacker: Unpacker) -> tuple[dict[str, Any], list[object]]:
    """Return the values by name and the tracked objects that a bundle's `packed` holds."""
    with collection_paused():
        values = unpacker.load()
        while unpacker.load() != ():
            pass  # they are among what is tracked
        return values, unpacker.load()


@contextlib.contextmanager
def _by_value(modules: list[ModuleType]) -> Iterator[None]:
    """Let cloudpickle write `modules` by value."""
    known = cloudpickle.list_registry_pickle_by_value()
    added = [module for module in modules if module.__name__ not in known]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)

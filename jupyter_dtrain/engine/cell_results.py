"""Changes that a cell has made to the notebook's objects: sent home by rank 0 at the end, and saved in snapshots during the run."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from ..capture.loggers import logger_changes, made_in_the_cell
from ..serialization.change_detection import Baseline
from ..serialization.copy_restore import Contents, restore, restore_all
from ..serialization.custom_reduce import go_back, leave_what_cannot_be_saved
from ..serialization.item_restore import items_of
from ..serialization.library_firsts import changed_objects
from ..serialization.library_kinds import is_sent_home
from ..serialization.library_placing import librarys_objects
from ..serialization.library_state import arrived, library_states
from ..serialization.pickler import Packed
from ..serialization.stand_ins import stands_for
from ..serialization.unpickler import Unpacker
from .new_modules import ModulesRefused, NewModules
from .result_packing import ResultPacking
from .result_pickler import Changes, Head, SpanningTensors
from .rng.generators import GENERATORS
from .send_checks import CannotSave, SendChecks

Gather = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor] | None]
_EASILY_CHANGED = (list, dict, set, deque, *GENERATORS)
_NOTHING: Mapping[str, object] = {}
_HIDDEN = re.compile(r"__(builtins__|name__)\Z|__(builtins_dict__|compiled_fn|import|resume_at)_")  # torch.compile leaves the last four


@dataclass(frozen=True)
class Saved:
    """The part of a snapshot with the cell's values.

    Attributes
    ----------
    packed : Packed
        A :class:`Head` and the graphs after it, the `extra` values, and all objects in them.
    names : frozenset of str
        Names whose values cannot be saved.
    extra : list of frozenset of str
        The same for each of the `extra` values.
    """

    packed: Packed
    names: frozenset[str]
    extra: list[frozenset[str]]


class CellResults:
    """The namespace of a cell and the objects that came with it, compared with their state before the cell ran.

    `at_home` are the modules beside the notebook that it has; without these names, no module is sent.
    """

    def __init__(self, namespace: dict[str, Any], tracked: list[object], *, at_home: Collection[str] | None = None) -> None:
        self.namespace = namespace
        self._modules = NewModules(at_home)
        self._before = dict(namespace)
        self._baseline = Baseline(tracked)
        self._packing = ResultPacking(namespace, tracked)

    def objects(self) -> list[object]:
        """Return the objects from the notebook, and the values of the cell's names."""
        return [*self._baseline.objects, *self.namespace.values()]

    def changed_and_not(self) -> tuple[list[object], list[object]]:
        """Return the notebook's objects that the cell has changed in place, and the others. Tensors and arrays are not compared."""
        changed = [*self._baseline.changed_holders(), *map(vars, self._modules.found())]
        ids = {id(obj) for obj in changed}
        return changed, [obj for obj in self._baseline.objects if id(obj) not in ids]

    def pack(self, value: object, *, skip: Mapping[str, object] = _NOTHING) -> tuple[Packed, dict[str, str]]:
        """Return the values to send home, and the names that cannot be sent with the reason for each.

        `value` is that of the cell's last line. A name in `skip` is not sent while it has the value given there.
        """
        with self._packing.with_modules(self._modules.found()):
            try:
                return self._pack(value, skip)
            except ModulesRefused as error:
                refused = error.reasons
        packed, not_sent = self._pack(value, skip)  # the notebook imports them
        return packed, {**self._modules.lost(refused), **not_sent}

    def _pack(self, value: object, skip: Mapping[str, object]) -> tuple[Packed, dict[str, str]]:
        bound, changes, states = self._bound(skip), self._changes(), self._states()
        try:
            packed = self._packing.packed(changes, bound, value, states)
            return packed, {f"{name}.cache": reason for name, reason in self._packing.caches_left.items()}
        except ModulesRefused:
            raise
        except Exception:
            if go_back(lambda obj: self._checks().why_not(obj) is not None):
                return self._pack(value, skip)
            if refused := self._packing.modules_refused(self._checks().why_not):
                raise ModulesRefused(refused) from None
            # Something cannot be sent: find out what, piece by piece.
            not_sent = {name: reason for name, obj in bound.items() if (reason := self._checks().why_not(obj)) is not None}
            kept = {name: obj for name, obj in bound.items() if name not in not_sent}
            changes = self._checks().changes(changes, not_sent)
            kept_value = None if self._checks().why_not(value) else value
            return self._packing.packed(changes, kept, kept_value, self._checks().states(states)), not_sent

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def save(
        self,
        extra: Sequence[Mapping[str, Any]],
        *,
        gather: Gather,
        skip: Mapping[str, object],
        elsewhere: Mapping[int, int] = MappingProxyType({}),
    ) -> Saved | None:
        """Return the state of the cell's values, for :meth:`load` in another process.

        Parameters
        ----------
        extra : sequence of dict
            Other values by name, such as a function's variables.
        gather : callable
            Returns full tensors for tensors that span the ranks; ``None`` if the ranks hold different ones. A collective, so all ranks must
            save at the same place.
        skip : dict
            Names that are not saved while they have these values.
        elsewhere : mapping of int to int
            As in :class:`Packer`.

        Returns
        -------
        Saved, optional
            ``None`` if the ranks hold different tensors.

        Raises
        ------
        CannotSave
        """
        bound = self._bound(skip)
        changes, states = self._changes(), self._states()
        everything: list[dict[str, Any]] = [bound, *map(dict, extra)]
        missing: list[frozenset[str]] = [frozenset()] * len(everything)
        spanning = SpanningTensors()

        def packed_with(whole: Callable[[Any], Any]) -> Packed:
            values, *others = everything
            return self._packing.packed(changes, values, None, states, extra=others, whole=whole, elsewhere=elsewhere)

        try:
            packed = packed_with(spanning.note)
        except Exception:
            if leave_what_cannot_be_saved(lambda obj: self._checks().why_not(obj, SpanningTensors().note) is not None):
                return self.save(extra, gather=gather, skip=skip, elsewhere=elsewhere)
            everything_there = everything
            missing = [
                frozenset(name for name, obj in part.items() if self._checks().why_not(obj, spanning.note) is not None)
                for part in everything
            ]
            everything = [
                {name: obj for name, obj in part.items() if name not in names} for part, names in zip(everything, missing, strict=True)
            ]
            self._checks().refuse_to_lose_state(everything_there, missing, spanning)
            lost: dict[str, str] = {}
            changes, states = self._checks().changes(changes, lost, spanning.note), self._checks().states(states)
            for name, reason in lost.items():
                raise CannotSave(name, reason) from None
            spanning = SpanningTensors()
            packed = packed_with(spanning.note)
        # Exchange only after all spanning tensors are known: ranks that hold different ones must not start exchanging them.
        wholes = gather(spanning.tensors)
        if wholes is None:
            return None
        if wholes:
            packed = packed_with(spanning.filled(wholes))
        return Saved(packed, missing[0], missing[1:])

    def load(
        self, packed: Packed, *, device_for: Callable[[str], torch.device]
    ) -> tuple[list[dict[str, Any]], list[object], Callable[[], None]]:
        """Restore the state packed by :meth:`save` in the namespace and the notebook's objects.

        Returns
        -------
        extra : list of dict
        objects : list of object
            Objects that were created anew, and tensors whose memory was.
        again : callable
            Restores the state once more: code evaluated during the jump may change containers and random generators.
        """
        unpacker = Unpacker(packed, namespace=self.namespace, known=self._baseline.objects, device_for=device_for)
        head: Head = unpacker.load()
        changed = {**head.changes.changed, **{index: unpacker.load() for index in head.others}}
        bound = {name: unpacker.load() for name in head.names}
        with made_in_the_cell():
            unpacker.load()  # states of libraries, which are restored by unpickling
        unpacker.load()  # value of the last line: none yet
        extra: list[dict[str, Any]] = unpacker.load()
        objects: list[object] = unpacker.load()
        objects += [self._baseline.objects[index] for index, new in changed.items() if new.replaced and new.alias is None]
        restore_all([self._baseline.objects[index] for index in changed], list(changed.values()))
        for name in head.changes.deleted:
            self.namespace.pop(name, None)
        self.namespace.update(bound)
        marked = [(obj, items_of(obj)) for obj in (*self._baseline.objects, *objects) if isinstance(obj, _EASILY_CHANGED)]

        def again() -> None:
            for obj, items in marked:
                restore(obj, Contents(items))
            # Patches have replaced functions under their names meanwhile: keep these.
            self.namespace.update({name: obj for name, obj in bound.items() if stands_for(self.namespace.get(name)) is not obj})

        return extra, objects, again

    # -- current values and changes ----------------------------------------------------------------------------------

    def _bound(self, skip: Mapping[str, object]) -> dict[str, Any]:
        before = self._before
        return {
            name: obj
            for name, obj in list(self.namespace.items())
            if not _HIDDEN.match(name) and (name not in before or before[name] is not obj) and (name not in skip or skip[name] is not obj)
        }

    def _changes(self) -> Changes:
        found = self._baseline.changed()
        librarys = librarys_objects()
        for index in [index for index in found if id(self._baseline.objects[index]) in librarys]:
            attributes = {name: value for name, value in found[index].attributes.items() if is_sent_home(name, value)}
            found[index] = replace(found[index], attributes=attributes)
        changed = {index: self._packing.with_memory(index, new) for index, new in found.items()}
        return Changes(changed, [name for name in self._before if name not in self.namespace])

    def _states(self) -> list[Any]:
        librarys = changed_objects()
        self._packing.references = librarys.references
        kept = library_states(self.objects(), also=arrived(), but={state.place for state in librarys.states})
        return [*kept, *librarys.states, *logger_changes()]

    def _checks(self) -> SendChecks:
        return SendChecks(self._packing.packer, objects=self._baseline.objects, before=self._before)

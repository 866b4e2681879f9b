"""The hyperparameters of a cell, found in the objects that it trains with: no call in the cell is needed.

An optimizer is described at its first step, with the models whose parameters it has, and a scheduler at the step after it was made:
earlier they may be incomplete, later they have changed. Snapshots contain the descriptions, so that a resumed run has the same. Objects
with equal descriptions count once: a cross-validation makes ten of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from ...protocol import Hyperparameters, Message, Value
from ...system.patches import patched
from ..identity_map import IdentityMap
from ..module_tree import outermost, parameters_in
from .described_objects import loader_facts, model_facts, optimizer_facts, plain, scheduler_facts

MAX_ALIKE = 8
"""Most optimizers, models, schedulers and loaders of a cell that are described."""


class HyperparameterLog:
    """Finds the hyperparameters of one rank's cell and keeps them until they are sent. Only rank 0 does: those of the others are equal.

    Attributes
    ----------
    modules : callable
        Returns the known modules.
    """

    def __init__(self, rank: int) -> None:
        self._is_on = rank == 0
        self.modules: Callable[[], Iterable[nn.Module]] = list
        self._found: dict[str, Value] = {}
        self._given: dict[str, Value] = {}
        self._described: dict[str, list[dict[str, Value]]] = {}  # by the kind of object
        self._known: IdentityMap[bool] = IdentityMap()
        self._drawn: tuple[DataLoader[Any], int] | None = None  # whose batch is the last, drawn for no model in training mode
        self._schedulers: list[LRScheduler] = []  # that are not described yet
        self._fresh: list[Hyperparameters] = []

    # -- what the cell does ------------------------------------------------------------------------------------------

    @contextmanager
    def installed(self, objects: Iterable[object]) -> Iterator[None]:
        """Follow schedulers: those among `objects`, and those made in the ``with`` block."""
        if not self._is_on:
            yield
            return
        self._schedulers += [obj for obj in objects if isinstance(obj, LRScheduler)]
        with ExitStack() as stack:
            for kind in {kind for kind in vars(lr_scheduler).values() if isinstance(kind, type) and issubclass(kind, LRScheduler)}:
                if "__init__" in vars(kind):  # some of PyTorch's do not call that of their base
                    stack.enter_context(patched(kind, "__init__", self._noticing(kind.__init__)))
            try:
                yield
            finally:
                self.finish()

    def _noticing(self, original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def scheduler_init(scheduler: LRScheduler, *args: Any, **kwargs: Any) -> None:
            original(scheduler, *args, **kwargs)
            if not any(scheduler is other for other in self._schedulers):
                self._schedulers.append(scheduler)

        return scheduler_init

    def on_optimizer_step(self, optimizer: Optimizer) -> None:
        """Note a step of an optimizer: a new one is described."""
        if not self._is_on:
            return
        self._describe_drawn()
        if self._is_new(optimizer):
            self._note_seed()
            self._describe("optimizer", optimizer_facts(optimizer))
            self._describe_models({id(p) for group in optimizer.param_groups for p in group["params"]})
        if self._schedulers:
            self._describe_schedulers()

    def on_loader(self, loader: DataLoader[Any], together: int = 1) -> None:
        """Note that the cell trains on the batches of a loader, of which `together` make one batch of the run."""
        if self._is_on and self._is_new(loader):
            self._note_seed()
            self._describe("loader", loader_facts(loader, together))

    def on_batch(self, loader: DataLoader[Any] | None = None, together: int = 1) -> None:
        """Note the loader of a batch that is drawn with no model in training mode; ``None`` for others, which :meth:`on_loader` handles."""
        self._drawn = (loader, together) if self._is_on and loader is not None and torch.is_grad_enabled() else None

    def on_backward(self) -> None:
        """Note a backward pass: tensors of no model, or a model in evaluation mode, are trained on the last batch."""
        if self._is_on:
            self._note_seed()
        if "loader" not in self._described:
            self._describe_drawn()

    @contextmanager
    def loaders_noticed(self) -> Iterator[None]:
        """Follow the loaders that the cell iterates over with gradients enabled, if nothing else does, in the ``with`` block."""
        iterate = DataLoader.__iter__

        @wraps(iterate)
        def loader_iter(loader: DataLoader[Any]) -> Any:
            if torch.is_grad_enabled():
                self.on_loader(loader)
            return iterate(loader)

        with patched(DataLoader, "__iter__", loader_iter):
            yield

    def finish(self) -> None:
        """Describe objects without a step: models of a cell that updates its weights by hand, schedulers made at its end."""
        if self._is_on:
            if "optimizer" not in self._described and "loader" in self._described:
                self._describe_models(None)
            self._describe_schedulers()

    def config(self, values: Mapping[str, Any]) -> None:
        """Note hyperparameters that the cell gives by name."""
        if self._is_on:
            self._give({str(name): plain(value) for name, value in values.items()})

    # -- what is told ------------------------------------------------------------------------------------------------

    def drain(self) -> list[Message]:
        """Return messages about what is new."""
        fresh, self._fresh = self._fresh, []
        return [*fresh]

    def state_dict(self) -> dict[str, Any]:
        """Return the state from which another process resumes."""
        optimizers = [obj for obj, _ in self._known.items() if isinstance(obj, Optimizer)]  # the others do not change as they are used
        return {"found": self._found, "given": self._given, "described": self._described, "known": optimizers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a :meth:`state_dict`."""
        self._described = {kind: list(all_) for kind, all_ in state["described"].items()}
        for optimizer in state["known"]:
            self._known.set(optimizer, True)
        # Perhaps it was not sent before the process ended.
        self._add(state["found"])
        self._give(state["given"])

    # -- inside ------------------------------------------------------------------------------------------------------

    def _is_new(self, obj: object) -> bool:
        """Return whether `obj` is seen for the first time."""
        if self._known.get(obj):
            return False
        return self._known.set(obj, True)

    def _describe_drawn(self) -> None:
        drawn, self._drawn = self._drawn, None
        if drawn is not None:
            self.on_loader(*drawn)

    def _describe_models(self, parameters: set[int] | None) -> None:
        """Describe the models that have some of `parameters`, by `id`; ``None``: models with parameters that require gradients."""
        for module in outermost(list(self.modules())):
            if any(p.requires_grad if parameters is None else id(p) in parameters for p in parameters_in(module)) and self._is_new(module):
                self._describe("model", model_facts(module))

    def _describe_schedulers(self) -> None:
        schedulers, self._schedulers = self._schedulers, []
        inner = {id(part) for scheduler in schedulers for part in getattr(scheduler, "_schedulers", ())}
        for scheduler in schedulers:
            if id(scheduler) not in inner and self._is_new(scheduler):
                self._describe("scheduler", scheduler_facts(scheduler))

    def _note_seed(self) -> None:
        if "seed" not in self._found:
            self._add({"seed": plain(torch.initial_seed())})

    def _describe(self, kind: str, facts: dict[str, Value]) -> None:
        """Add an object's `facts`, with names that begin with its `kind`, unless they are known."""
        known = self._described.setdefault(kind, [])
        if facts in known or len(known) >= MAX_ALIKE:
            return
        known.append(facts)
        number = str(len(known)) if len(known) > 1 else ""
        # What is one of several has its number behind the kind, or the whole name: optimizer2.lr, batch_size2.
        self._add({f"{kind}{number}{name.removeprefix(kind)}" if name.startswith(kind) else name + number: facts[name] for name in facts})

    def _add(self, facts: dict[str, Value]) -> None:
        self._found |= facts
        self._fresh.append(Hyperparameters(rank=0, values=dict(facts)))

    def _give(self, values: dict[str, Value]) -> None:
        self._given |= values
        self._fresh.append(Hyperparameters(rank=0, values=dict(values), given=True))

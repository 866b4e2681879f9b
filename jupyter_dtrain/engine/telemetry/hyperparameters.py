"""The hyperparameters of a cell, found in the objects that it trains with: no call in the cell is needed.

An optimizer is described when it first steps, with the models whose parameters it has, and a scheduler at the step after it was
made: earlier they may not be complete, later they have changed. What was found goes along in snapshots, so that a run that goes on
from one says the same as before. Objects that are described alike count once: the folds of a cross-validation make ten of each.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import wraps
from numbers import Integral, Real
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, RandomSampler

from ...protocol import Hyperparameters, Message, Value
from ...system.patches import patched
from ..module_tree import IdentityMap, outermost, parameters_in

MAX_ALIKE = 8
"""Optimizers, models, schedulers and loaders that are described of a cell, at most."""
MAX_TEXT = 200
"""Characters of a value that is a text."""
_EXACT = 1 << 53  # whole numbers beyond it are rounded by JavaScript
_NOT_HYPER = frozenset({"params", "param_names"})
_NOT_OF_SCHEDULERS = frozenset({"self", "optimizer", "last_epoch", "schedulers", "verbose"})


class HyperparameterLog:
    """Finds the hyperparameters of one rank's cell and keeps them until they are sent. Ranks but 0 find nothing: theirs are the same.

    Attributes
    ----------
    modules : callable
        Returns the modules that are known.
    """

    def __init__(self, rank: int) -> None:
        self._is_on = rank == 0
        self.modules: Callable[[], Iterable[nn.Module]] = list
        self._found: dict[str, Value] = {}
        self._given: dict[str, Value] = {}
        self._described: dict[str, list[dict[str, Value]]] = {}  # by the kind of object
        self._known: IdentityMap[bool] = IdentityMap()
        self._schedulers: list[LRScheduler] = []  # that are not described yet
        self._fresh: list[Hyperparameters] = []

    # -- what the cell does ------------------------------------------------------------------------------------------

    @contextmanager
    def installed(self, objects: Iterable[object]) -> Iterator[None]:
        """Notice schedulers, those among `objects` and what is made until the end of the ``with`` block."""
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
        """Note that an optimizer has stepped: it is described if it is new."""
        if not self._is_on:
            return
        if self._is_new(optimizer):
            self._note_seed()
            self._describe("optimizer", _optimizer(optimizer))
            self._describe_models({id(p) for group in optimizer.param_groups for p in group["params"]})
        if self._schedulers:
            self._describe_schedulers()

    def on_loader(self, loader: DataLoader[Any], together: int = 1) -> None:
        """Note that the cell trains on the batches of a loader, `together` of which make one of the run's."""
        if self._is_on and self._is_new(loader):
            self._note_seed()
            self._describe("loader", _loader(loader, together))

    @contextmanager
    def loaders_noticed(self) -> Iterator[None]:
        """Notice which loaders the cell iterates over with gradients on, where nothing else does, until the end of the ``with`` block."""
        iterate = DataLoader.__iter__

        @wraps(iterate)
        def loader_iter(loader: DataLoader[Any]) -> Any:
            if torch.is_grad_enabled():
                self.on_loader(loader)
            return iterate(loader)

        with patched(DataLoader, "__iter__", loader_iter):
            yield

    def finish(self) -> None:
        """Describe what no step has come for: the models of a cell that updates its weights by hand, schedulers made at its end."""
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
        """Return what is new as messages."""
        fresh, self._fresh = self._fresh, []
        return [*fresh]

    def state_dict(self) -> dict[str, Any]:
        """Return what is known, to go on from in another process."""
        optimizers = [obj for obj, _ in self._known.items() if isinstance(obj, Optimizer)]  # the others do not change as they are used
        return {"found": self._found, "given": self._given, "described": self._described, "known": optimizers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a :meth:`state_dict`."""
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

    def _describe_models(self, parameters: set[int] | None) -> None:
        """Describe the models that have some of `parameters`, by their `id`; ``None``: those that could be trained."""
        for module in outermost(list(self.modules())):
            if any(p.requires_grad if parameters is None else id(p) in parameters for p in parameters_in(module)) and self._is_new(module):
                self._describe("model", _model(module))

    def _describe_schedulers(self) -> None:
        schedulers, self._schedulers = self._schedulers, []
        inner = {id(part) for scheduler in schedulers for part in getattr(scheduler, "_schedulers", ())}
        for scheduler in schedulers:
            if id(scheduler) not in inner and self._is_new(scheduler):
                self._describe("scheduler", _scheduler(scheduler))

    def _note_seed(self) -> None:
        if "seed" not in self._found:
            self._add({"seed": plain(torch.initial_seed())})

    def _describe(self, kind: str, facts: dict[str, Value]) -> None:
        """Add an object's `facts`, whose names begin with its `kind`, unless one like it is known."""
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


def plain(value: Any) -> Value:
    """Return a value as the record has it: numbers, texts and truth values as they are, anything else as a short text."""
    if isinstance(value, torch.Tensor) or type(value).__module__ == "numpy":
        value = value.item() if getattr(value, "ndim", None) == 0 or getattr(value, "size", None) == 1 else value
        if isinstance(value, torch.Tensor):
            value = value.item() if value.numel() == 1 else f"tensor of shape {tuple(value.shape)}"
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value) if abs(int(value)) < _EXACT else str(int(value))
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, tuple | list):
        inner = [plain(part) for part in value[: MAX_TEXT // 2]]
        text = repr(tuple(inner) if isinstance(value, tuple) else inner)
    elif isinstance(value, type) or inspect.isroutine(value):
        text = value.__qualname__
    else:
        text = str(value)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _optimizer(optimizer: Optimizer) -> dict[str, Value]:
    groups = [{name: plain(value) for name, value in group.items() if name not in _NOT_HYPER} for group in optimizer.param_groups]
    facts: dict[str, Value] = {"optimizer": type(optimizer).__name__}
    for name in dict.fromkeys(name for group in groups for name in group):
        values = [group.get(name) for group in groups]
        if name == "initial_lr" and values == [group.get("lr") for group in groups]:
            continue
        if any(value is not None and value is not False for value in values):  # what is off needs no line
            facts[f"optimizer.{name}"] = values[0] if len(set(map(repr, values))) == 1 else plain(values)
    if len(groups) > 1:
        facts["optimizer.groups"] = len(groups)
    return facts


def _model(module: nn.Module) -> dict[str, Value]:
    inner = getattr(module, "_orig_mod", getattr(module, "module", None))  # of one that is compiled, or wrapped by DDP
    parameters = [p for p in parameters_in(module) if not isinstance(p, nn.UninitializedParameter)]
    total, trained = (sum(p.numel() for p in parameters if p.requires_grad or all_) for all_ in (True, False))
    facts: dict[str, Value] = {"model": type(inner if isinstance(inner, nn.Module) else module).__name__, "model.parameters": total}
    return facts if trained == total else {**facts, "model.trained_parameters": trained}


def _scheduler(scheduler: LRScheduler, prefix: str = "scheduler") -> dict[str, Value]:
    facts: dict[str, Value] = {prefix: type(scheduler).__name__}
    for name in inspect.signature(type(scheduler).__init__).parameters:
        value = getattr(scheduler, name, getattr(scheduler, f"_{name}", None))
        if name == "milestones" and isinstance(value, Mapping):  # a counter of them
            value = sorted(value)
        if name not in _NOT_OF_SCHEDULERS and value is not None and value is not False and not callable(value):
            facts[f"{prefix}.{name}"] = plain(value)
    for number, part in enumerate(getattr(scheduler, "_schedulers", ()), start=1):
        facts |= _scheduler(part, f"{prefix}.{number}")
    return facts


def _loader(loader: DataLoader[Any], together: int) -> dict[str, Value]:
    size = loader.batch_size if loader.batch_size is not None else getattr(loader.batch_sampler, "batch_size", None)
    facts: dict[str, Value] = {"batch_size": size * together if isinstance(size, int) else None}
    facts["dataset"] = type(loader.dataset).__name__
    try:
        facts["dataset.size"] = len(loader.dataset)  # type: ignore[arg-type]  # not all have one
    except (TypeError, NotImplementedError):
        pass
    if isinstance(loader.sampler, RandomSampler):
        facts["shuffle"] = True
    if loader.drop_last:
        facts["drop_last"] = True
    if loader.generator is not None:
        facts["loader.seed"] = plain(loader.generator.initial_seed())
    return {name: value for name, value in facts.items() if value is not None}

"""What a cell reads without naming it: settings that a notebook makes once, its folder and where it finds modules."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..integrations.registry import KNOWN, be_told, environment_of_host
from .secrets import is_secret
from .settings import ENVIRONMENT, SOME_OF_IT, changes, make_settings, of_other_ranks, settings_now


@dataclass(frozen=True)
class ProcessSettings:
    """Settings of one process. The cell finds the notebook's on the engines, and what it changes of them counts in the notebook.

    Attributes
    ----------
    folder : str
        The working directory.
    module_folders : list of str
        ``sys.path``.
    dtype : torch.dtype
        The default of new tensors.
    gradients : bool
        Whether gradients are on.
    deterministic, only_warn : bool
        Whether PyTorch uses deterministic algorithms, and only warns where it has none.
    settings : dict
        Other settings of libraries, by name.
    withheld : tuple of str
        Environment variables that were left out of them, as they look like secrets.
    """

    folder: str
    module_folders: list[str]
    dtype: torch.dtype
    gradients: bool
    deterministic: bool
    only_warn: bool
    settings: dict[str, Any] = field(default_factory=dict)
    withheld: tuple[str, ...] = ()

    @classmethod
    def now(cls, *, of_libraries: bool = True) -> ProcessSettings:
        """Return those of this process, `of_libraries` that need not be there too."""
        return cls(
            folder=os.getcwd(),  # noqa: PTH109 - a text, to be compared
            module_folders=list(sys.path),
            dtype=torch.get_default_dtype(),
            gradients=torch.is_grad_enabled(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            only_warn=torch.is_deterministic_algorithms_warn_only_enabled(),
            settings=settings_now(of_libraries=of_libraries),
        )

    def changed_from(self, before: ProcessSettings) -> ProcessSettings:
        """Return them with only those of the `settings` that are other than `before`."""
        return replace(self, settings=changes(before.settings, self.settings))

    def of_rank(self, rank: int) -> ProcessSettings:
        """Return them for a rank: another than 0 logs nothing."""
        return self if rank == 0 else replace(self, settings=of_other_ranks(self.settings))

    def of_host(self, source: str) -> ProcessSettings:
        """Return them for a cell whose engines belong to this process, and not to the notebook's."""
        environment = environment_of_host(self.settings.get(ENVIRONMENT, {}), self.settings, source)
        return replace(self, settings={**self.settings, ENVIRONMENT: environment})

    def without_secrets(self) -> ProcessSettings:
        """Return them as they may lie on a disk."""
        kept, withheld = dict(self.settings), set(self.withheld)
        for name in (ENVIRONMENT, SOME_OF_IT):
            secret = {variable for variable, value in kept.get(name, {}).items() if is_secret(variable, value or "")}
            if secret:
                withheld |= secret
                kept[name] = {variable: value for variable, value in kept[name].items() if variable not in secret}
        return self if withheld == set(self.withheld) else replace(self, settings=kept, withheld=tuple(sorted(withheld)))

    def with_secrets_of(self, environment: Mapping[str, str]) -> ProcessSettings:
        """Return them with the values that what was left out has in an `environment`; what it has none of stays `withheld`."""
        found = {name: environment[name] for name in self.withheld if name in environment}
        if not found:
            return self
        settings = {**self.settings, ENVIRONMENT: {**self.settings.get(ENVIRONMENT, {}), **found}}
        return replace(self, settings=settings, withheld=tuple(name for name in self.withheld if name not in found))

    def set_folders(self) -> None:
        """Be in the notebook's folder, and find modules and integrations where it does."""
        try:
            os.chdir(self.folder)
        except OSError:  # an engine elsewhere: a cell that reads files by relative paths will say which is missing
            pass
        sys.path[:] = [*self.module_folders, *(path for path in sys.path if path not in self.module_folders)]
        if KNOWN in self.settings:
            be_told(self.settings[KNOWN])

    def set(self) -> None:
        """Make them those of this process: all but a folder that is not there, and where it found modules before it still does."""
        self.set_folders()
        torch.set_default_dtype(self.dtype)
        torch.set_grad_enabled(self.gradients)
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.only_warn)
        make_settings(self.settings)

"""Process settings that a cell reads implicitly: defaults of libraries, working directory, module search path."""

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
    """Settings of one process. On engines the cell finds the notebook's; its changes are applied in the notebook.

    Attributes
    ----------
    folder : str
        The working directory.
    module_folders : list of str
        ``sys.path``.
    dtype : torch.dtype
        The default of new tensors.
    gradients : bool
        Whether autograd is enabled.
    deterministic, only_warn : bool
        Whether PyTorch uses deterministic algorithms, and only warns where it has none.
    settings : dict
        Other settings of libraries, by name.
    withheld : tuple of str
        Environment variables that were left out of `settings`, as they look like secrets.
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
        """Return the settings of this process; `of_libraries`: also those of optional libraries."""
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
        """Return a copy with only those `settings` that differ from `before`."""
        return replace(self, settings=changes(before.settings, self.settings))

    def of_rank(self, rank: int) -> ProcessSettings:
        """Return the settings for a rank: integrations may define other values for ranks other than 0."""
        return self if rank == 0 else replace(self, settings=of_other_ranks(self.settings))

    def of_host(self, source: str) -> ProcessSettings:
        """Return the settings for a cell whose engines belong to this process instead of the notebook's."""
        environment = environment_of_host(self.settings.get(ENVIRONMENT, {}), self.settings, source)
        return replace(self, settings={**self.settings, ENVIRONMENT: environment})

    def without_secrets(self) -> ProcessSettings:
        """Return a copy that may be written to disk, without environment variables that look like secrets."""
        kept, withheld = dict(self.settings), set(self.withheld)
        for name in (ENVIRONMENT, SOME_OF_IT):
            secret = {variable for variable, value in kept.get(name, {}).items() if is_secret(variable, value or "")}
            if secret:
                withheld |= secret
                kept[name] = {variable: value for variable, value in kept[name].items() if variable not in secret}
        return self if withheld == set(self.withheld) else replace(self, settings=kept, withheld=tuple(sorted(withheld)))

    def with_secrets_of(self, environment: Mapping[str, str]) -> ProcessSettings:
        """Return a copy with the withheld variables that `environment` has; the others stay `withheld`."""
        found = {name: environment[name] for name in self.withheld if name in environment}
        if not found:
            return self
        settings = {**self.settings, ENVIRONMENT: {**self.settings.get(ENVIRONMENT, {}), **found}}
        return replace(self, settings=settings, withheld=tuple(name for name in self.withheld if name not in found))

    def set_folders(self) -> None:
        """Change to the notebook's folder, and use its module search path and integrations."""
        try:
            os.chdir(self.folder)
        except OSError:  # not on this engine's host: a cell that reads relative paths will raise its own error
            pass
        sys.path[:] = [*self.module_folders, *(path for path in sys.path if path not in self.module_folders)]
        if KNOWN in self.settings:
            be_told(self.settings[KNOWN])

    def set(self) -> None:
        """Apply the settings to this process, except a folder that does not exist; this process's own search path is kept at the end."""
        self.set_folders()
        torch.set_default_dtype(self.dtype)
        torch.set_grad_enabled(self.gradients)
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.only_warn)
        make_settings(self.settings)

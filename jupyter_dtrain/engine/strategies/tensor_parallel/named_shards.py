"""Which parameters ``--shard`` names, and how they are to be divided."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ....errors import UsageError
from ....shard_patterns import How, ShardPattern
from ...module_tree import IdentityMap


class NamedShards:
    """What the patterns of ``--shard`` match in the models that a rank has.

    Parameters
    ----------
    patterns : sequence of ShardPattern
        Of those that match a parameter the last counts.
    """

    def __init__(self, patterns: Sequence[ShardPattern] = ()) -> None:
        self._patterns = patterns
        self._how: IdentityMap[How] = IdentityMap()  # of parameters
        self._matched: set[ShardPattern] = set()
        self._names: dict[str, None] = {}  # of parameters, some of which a message has

    def look(self, module: nn.Module) -> None:
        """Find the parameters of `module` that are named. Those that were named before stay as they are."""
        if not self._patterns:
            return
        known = {id(parameter) for parameter, _ in self._how.items()}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            self._names.setdefault(name)
            for pattern in self._patterns:
                if pattern.matches(name):
                    self._matched.add(pattern)
                    if id(parameter) not in known:
                        self._how.set(parameter, pattern.how)

    def how(self, parameter: nn.Parameter) -> How | None:
        """Return how a parameter is to be divided, ``None`` where it is not named."""
        return self._how.get(parameter)

    def allows(self, parameter: nn.Parameter, how: How) -> bool:
        """Return whether a parameter may be divided so."""
        return self.how(parameter) in (None, how)

    def unmatched(self) -> str | None:
        """Return which patterns match nothing, as a sentence has it; ``None``: all match, or there is no model."""
        missing = [f"`--shard {pattern}`" for pattern in self._patterns if pattern not in self._matched]
        if not missing or not self._names:
            return None
        names = list(self._names)
        some = ", ".join(f"`{name}`" for name in names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        return f"{' and '.join(missing)} {'matches' if len(missing) == 1 else 'match'} no parameter: there are {some}."

    def check(self) -> None:
        """Look whether each pattern matches something in the models that there are.

        Raises
        ------
        UsageError
        """
        message = self.unmatched()
        if message is not None:
            raise UsageError(message)

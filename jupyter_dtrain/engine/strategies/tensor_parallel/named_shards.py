"""Which parameters ``--shard`` names, and how they are sharded."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ....errors import UsageError
from ....shard_patterns import How, ShardPattern
from ...identity_map import IdentityMap


class NamedShards:
    """Matches of the patterns of ``--shard`` in the models of a rank.

    Parameters
    ----------
    patterns : sequence of ShardPattern
        The last one that matches a parameter applies.
    """

    def __init__(self, patterns: Sequence[ShardPattern] = ()) -> None:
        self._patterns = patterns
        self._how: IdentityMap[How] = IdentityMap()  # of parameters
        self._matched: set[ShardPattern] = set()
        self._names: dict[str, None] = {}  # of parameters, some of which a message has

    def look(self, module: nn.Module) -> None:
        """Find the parameters of `module` that are named. Earlier matches stay as they are."""
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
        """Return how a parameter is to be sharded, ``None`` if it is not named."""
        return self._how.get(parameter)

    def allows(self, parameter: nn.Parameter, how: How) -> bool:
        """Return whether a parameter can be sharded in this way."""
        return self.how(parameter) in (None, how)

    def unmatched(self) -> str | None:
        """Return a sentence about patterns that match nothing; ``None`` if all match, or there is no model."""
        missing = [f"`--shard {pattern}`" for pattern in self._patterns if pattern not in self._matched]
        if not missing or not self._names:
            return None
        names = list(self._names)
        some = ", ".join(f"`{name}`" for name in names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        return f"{' and '.join(missing)} {'matches' if len(missing) == 1 else 'match'} no parameter: there are {some}."

    def check(self) -> None:
        """Check that each pattern matches something in the models.

        Raises
        ------
        UsageError
        """
        message = self.unmatched()
        if message is not None:
            raise UsageError(message)

"""Transfer options of pandas that a notebook has set with ``pandas.set_option``, and what shares memory with copy-on-write.

Blocks and indexes with common memory have one `BlockValuesRefs` object, by which pandas finds whether to copy before a write. They lose it
when pandas pickles them, so it is sent as one more object.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ..system.interpreter import unwarned
from .base import Integration, Setting


def _options() -> dict[str, Any]:
    config = sys.modules.get("pandas._config.config")
    if config is None:
        return {}
    with unwarned():  # of deprecated options
        values = {key: (config.get_option(key), option.defval) for key, option in config._registered_options.items()}
    return {key: value for key, (value, default) in values.items() if value != default}


def _set_options(options: Mapping[str, Any]) -> None:
    pandas = importlib.import_module("pandas")
    for key in _options().keys() - options.keys():
        pandas.reset_option(key)
    for key, value in options.items():
        pandas.set_option(key, value)


def _references() -> Any:
    return importlib.import_module("pandas._libs.internals").BlockValuesRefs()


def _referring(make: Callable[..., Any], args: tuple[Any, ...], references: Any) -> Any:
    """Return the block or index ``make(*args)``, which has `references` in common with others."""
    made = make(*args)
    if hasattr(made, "refs"):
        made.refs = references
        references.add_reference(made)
    else:
        made._references = references
        references.add_index_reference(made)
    return made


def _set_state(frame: Any, state: tuple[tuple[str, Any], ...]) -> None:
    """Set the state of a frame or series. A dict of it would be tracked for changes, and keep blocks that the frame has given up."""
    frame.__setstate__(dict(state))


class Pandas(Integration):
    """Options that differ from the defaults, and references to common memory."""

    settings: ClassVar = {"set_option": Setting(get=_options, set=_set_options, default={})}

    def reduce(self, obj: Any) -> Any:
        """Return the reduce value of a frame, series, block or index such that common memory keeps its references."""
        kind, pandas = type(obj), sys.modules["pandas"]
        if not hasattr(pandas, "Index"):  # its import is under way, or was made to fail
            return NotImplemented
        if issubclass(kind, (pandas.DataFrame, pandas.Series)):
            make, args, state, *rest = obj.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            return (make, args, tuple(state.items()), None, None, _set_state) if type(state) is dict and not any(rest) else NotImplemented
        if issubclass(kind, pandas.Index):
            references = vars(obj).get("_references")  # of a RangeIndex it is a property
        elif kind.__module__ == "pandas.core.internals.blocks":
            references = getattr(obj, "refs", None)
        elif kind.__module__ == "pandas.core.internals.managers" and kind.__name__ == "SingleBlockManager":
            return kind, (obj.blocks[0], obj.axes[0])  # of a series, which pandas pickles without its block
        else:
            return (_references, ()) if kind.__name__ == "BlockValuesRefs" else NotImplemented
        return NotImplemented if references is None else (_referring, (*obj.__reduce__()[:2], references))


INTEGRATION = Pandas()

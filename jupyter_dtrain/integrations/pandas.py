"""Transfer pandas options, for example how tables are shown, that a notebook has set with ``pandas.set_option``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
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


class Pandas(Integration):
    """Options that differ from the defaults."""

    settings: ClassVar = {"set_option": Setting(get=_options, set=_set_options, default={})}


INTEGRATION = Pandas()

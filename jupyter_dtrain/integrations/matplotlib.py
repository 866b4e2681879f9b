"""Transfer how a notebook draws and shows figures: ``rcParams``, the backend, the formats.

Formats are chosen with ``%config InlineBackend.figure_format = "retina"`` or ``set_matplotlib_formats("svg")``. IPython stores them as
printer functions, one for each format. Before the first figure there are none, only the backend's configuration. So matplotlib need not be
imported if nothing is drawn.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from IPython.core.getipython import get_ipython

from .base import Integration, Setting

_OF_THE_FORMAT = frozenset({"fmt", "base64"})


def figure_formats() -> tuple[list[str], dict[str, Any]] | None:
    """Return the formats, and the options of ``print_figure``; ``None`` if no figure could be shown so far."""
    figure, shell = sys.modules.get("matplotlib.figure"), get_ipython()
    if figure is None or shell is None or shell.display_formatter is None:
        return None
    found, options = [], {}
    for formatter in shell.display_formatter.formatters.values():
        draw = formatter.type_printers.get(figure.Figure)
        if isinstance(draw, partial):
            found.append(draw.keywords.get("fmt", "retina"))
            options = {key: value for key, value in draw.keywords.items() if key not in _OF_THE_FORMAT}
    return (sorted(found), options) if found else None


def set_figure_formats(chosen: tuple[list[str], dict[str, Any]] | None) -> None:
    """Show current and later figures in the formats that :func:`figure_formats` returned."""
    shell = get_ipython()
    if chosen is None or shell is None:
        return
    try:
        from matplotlib_inline.config import InlineBackend
    except ImportError:  # nothing shows figures here
        return
    formats, options = chosen
    backend = InlineBackend.instance(parent=shell)
    backend.figure_formats, backend.print_figure_kwargs = set(formats), options
    if "matplotlib.figure" in sys.modules:
        from IPython.core.pylabtools import select_figure_formats

        select_figure_formats(shell, formats, **options)


_OF_A_WINDOW = frozenset({"backend", "backend_fallback", "interactive", "toolbar", "savefig.directory"})


def _parameters() -> dict[str, Any]:
    matplotlib = sys.modules.get("matplotlib")
    if matplotlib is None:
        return {}
    default = matplotlib.rcParamsDefault
    return {key: value for key, value in dict.items(matplotlib.rcParams) if key not in _OF_A_WINDOW and value != dict.get(default, key)}


def _set_parameters(parameters: Mapping[str, Any]) -> None:
    matplotlib = importlib.import_module("matplotlib")
    for key in _parameters().keys() - parameters.keys():
        matplotlib.rcParams[key] = matplotlib.rcParamsDefault[key]
    matplotlib.rcParams.update(parameters)


def _figures_drawn_by() -> str | None:
    """Return the backend that the notebook has chosen, if it needs no window; ``None`` for the environment's default."""
    matplotlib = sys.modules.get("matplotlib")
    if matplotlib is None:
        return None
    chosen = _short(dict.get(matplotlib.rcParams, "backend"))
    return chosen if chosen in _WITHOUT_A_WINDOW and chosen != _short(_usual_backend()) else None


def _draw_figures_by(backend: str | None) -> None:
    importlib.import_module("matplotlib").use(backend or _usual_backend())


def _usual_backend() -> str:
    return os.environ.get("MPLBACKEND", "agg")


def _short(backend: Any) -> str:
    return str(backend).lower().removeprefix("module://matplotlib_inline.backend_")


_WITHOUT_A_WINDOW = frozenset({"inline", "agg", "svg", "pdf", "ps", "cairo"})


def _own_parameters() -> Any:
    return importlib.import_module("matplotlib").rcParams


class Matplotlib(Integration):
    """``rcParams`` reduces to the reader's own, as figures would not see what a cell sets in a copy."""

    settings: ClassVar = {
        "rcParams": Setting(get=_parameters, set=_set_parameters, default={}),
        "use": Setting(get=_figures_drawn_by, set=_draw_figures_by),
        "figure_formats": Setting(get=figure_formats, set=set_figure_formats),
    }

    def reduce(self, obj: Any) -> Any:
        """Return a reduction of the parameters."""
        if type(obj).__name__ == "RcParams" and obj is sys.modules["matplotlib"].rcParams:
            return _own_parameters, ()
        return NotImplemented


INTEGRATION = Matplotlib()

"""How a notebook shows figures: what ``%config InlineBackend.figure_format = "retina"`` or ``set_matplotlib_formats("svg")`` has chosen.

IPython keeps it as functions that draw, one for each format. Before the first figure there are none, only what the backend will make of its
configuration, so that matplotlib need not be imported where nothing is drawn.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from IPython.core.getipython import get_ipython

_OF_THE_FORMAT = frozenset({"fmt", "base64"})


def figure_formats() -> tuple[list[str], dict[str, Any]] | None:
    """Return the formats, and what is given to matplotlib with each; ``None``: no figure could be shown so far."""
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
    """Show figures in the formats that :func:`figure_formats` returned, those to come too."""
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

"""An output of a cell that is shown anew in its own place."""

from __future__ import annotations

import html
import uuid

from IPython.display import publish_display_data

METADATA = {"jupyter_dtrain": "run"}
"""Marks the displays in the notebook, for tools that look for them; the sidebar takes away views that are left of a kernel."""


NOTICE = {"jupyter_dtrain": "notice"}
"""Marks lines of this project's own."""
_NOTICE_STYLE = "white-space: pre-wrap; margin: 2px 0; padding: 0 8px; border-left: 3px solid #7a8a99; font-size: 90%"


def show_notice(text: str) -> None:
    """Show a line of this project's own: not on ``stderr``, which notebooks show in red, and where errors are."""
    shown = f'<div style="{_NOTICE_STYLE}">{html.escape(text)}</div>'
    publish_display_data({"text/plain": text, "text/html": shown}, NOTICE)


class Display:
    """One output of the cell that is running; `is_shown`: it is there."""

    def __init__(self) -> None:
        self.id = f"dtrain-{uuid.uuid4().hex}"
        self.is_shown = False

    def show(self, data: dict[str, object]) -> None:
        """Show `data`, by media type, in the place of what was shown before."""
        publish_display_data(data, METADATA, transient={"display_id": self.id}, update=self.is_shown)
        self.is_shown = True

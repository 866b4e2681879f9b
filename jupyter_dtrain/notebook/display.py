"""Cell outputs that are updated in place, and notices."""

from __future__ import annotations

import html
import uuid

from IPython.display import publish_display_data

METADATA = {"jupyter_dtrain": "run"}
"""Metadata that marks our displays in the notebook; the sidebar removes views that a kernel has left behind."""


NOTICE = {"jupyter_dtrain": "notice"}
"""Metadata that marks this project's notices."""
_NOTICE_STYLE = "white-space: pre-wrap; margin: 2px 0; padding: 0 8px; border-left: 3px solid #7a8a99; font-size: 90%"


def show_notice(text: str) -> None:
    """Show a message of this project's own. Not on ``stderr``, which notebooks show in red."""
    shown = f'<div style="{_NOTICE_STYLE}">{html.escape(text)}</div>'
    publish_display_data({"text/plain": text, "text/html": shown}, NOTICE)


class Display:
    """One output of the running cell; `is_shown`: it exists."""

    def __init__(self) -> None:
        self.id = f"dtrain-{uuid.uuid4().hex}"
        self.is_shown = False

    def show(self, data: dict[str, object]) -> None:
        """Show `data`, by MIME type, in place of what was shown before."""
        publish_display_data(data, METADATA, transient={"display_id": self.id}, update=self.is_shown)
        self.is_shown = True

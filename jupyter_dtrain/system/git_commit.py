"""Return the Git commit of a folder, which is recorded with a run beside the text of its cell."""

from __future__ import annotations

import os
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path

LIMIT = timedelta(seconds=2)
"""Time limit of git, as a folder may be on a disk that does not respond."""


def commit_of(folder: Path) -> str | None:
    """Return the commit that is checked out in `folder`; ``None`` without a repository or without git.

    Whether files have changed since is not checked: that is slow in a large repository, and runs programs that its settings name.
    """
    git = shutil.which("git")
    if git is None or not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
        return None
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        found = subprocess.run(
            [git, "rev-parse", "--verify", "--quiet", "HEAD"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT.total_seconds(),
            check=True,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    commit = found.stdout.strip()
    return commit if len(commit) in (40, 64) and set(commit) <= set("0123456789abcdef") else None

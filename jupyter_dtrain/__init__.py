"""One line on top of a training cell, and it runs on every engine of a cluster."""

__version__ = "0.1.0"


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Tell ``jupyter-builder develop`` where the built front end lies, and under which name it is installed."""
    return [{"src": "labextension", "dest": "jupyter-dtrain"}]

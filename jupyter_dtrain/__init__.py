"""One line on top of a training cell, and it runs on every engine of a cluster."""

__version__ = "0.1.0"

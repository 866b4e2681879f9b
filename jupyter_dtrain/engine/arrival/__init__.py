"""Restore what came from the notebook on an engine: optimizers, modules beside the notebook, device names, warnings."""

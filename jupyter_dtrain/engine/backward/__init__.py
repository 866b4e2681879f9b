"""Backward passes: the gradients of the global batch, on every rank."""

"""Backward passes that leave the gradients of the global batch on every rank."""

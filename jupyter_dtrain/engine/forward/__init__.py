"""Calls of models on batches: on the rank's share, or on the full batch where the model needs it."""

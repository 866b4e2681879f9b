"""Batches of data loaders: each rank's share of them, in the order of a single process, resumable at any batch."""

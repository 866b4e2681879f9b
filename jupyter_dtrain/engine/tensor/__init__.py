"""The global view: a batch whose parts are on several ranks, and what the cell's code makes of it.

Shapes in docstrings: ``B`` is the samples of the global batch, ``b`` those of the rank's shard of it; ``…`` are other dims, alike on
all ranks.
"""

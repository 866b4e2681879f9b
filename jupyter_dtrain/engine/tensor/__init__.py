"""The global view: tensors that are sharded over the ranks and that the cell sees with their global shape.

Shapes in docstrings: ``B`` is the number of samples in the global batch, ``b`` the number in the rank's shard; ``…`` are other dims,
equal on all ranks.
"""

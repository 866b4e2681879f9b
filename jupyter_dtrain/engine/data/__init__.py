"""The batches of data loaders: each rank its part, in the order of one process, from any place on."""

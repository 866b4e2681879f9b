"""Random numbers on the ranks, drawn as one process would draw them."""

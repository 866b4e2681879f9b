"""A model that the cell calls on a batch: it gets the rank's part, or the whole batch where it asks for that."""

"""The global view: a batch whose parts are on several ranks, and what the cell's code makes of it."""

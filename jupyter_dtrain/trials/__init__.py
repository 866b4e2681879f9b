"""A cell with each of several values of its names: many runs side by side, of which the best comes home."""

"""What an engine tells while it runs, what it is told, and what of the cell is shown."""

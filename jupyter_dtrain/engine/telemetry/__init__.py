"""What a run shows of itself with no logging call in the cell."""

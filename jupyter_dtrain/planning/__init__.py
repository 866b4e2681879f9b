"""What a cell will take on the engines, before anything is there."""

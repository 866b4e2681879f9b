"""What a kernel has one of: its engines, its runs, what views are told of them and may ask for."""

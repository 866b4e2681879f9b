"""What is asked of the operating system."""

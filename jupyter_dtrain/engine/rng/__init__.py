"""What is drawn at random, drawn as one process would draw it."""

"""A recorded run in the form of other tools: a file for each, which imports its library when it is called."""

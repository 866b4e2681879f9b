"""Export a recorded run to other tools: one file for each tool, which imports the tool's library when it is called."""

"""One module for each tool: whether a file is of its format, and the traces in it."""

"""Worker processes and the trees they start."""

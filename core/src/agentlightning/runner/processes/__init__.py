"""Worker processes of a runner: started, watched and ended."""

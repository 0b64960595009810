"""Switch capture on and off in a process, completely undone."""

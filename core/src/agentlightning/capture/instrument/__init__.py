"""Switch capture on and off in a process, and undo every change."""

"""Where agents run inside the runner's process: event loops of their own, and threads."""

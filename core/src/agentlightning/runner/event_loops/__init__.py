"""The event loops and threads that agents run on, apart from the loop that serves store and gateway."""

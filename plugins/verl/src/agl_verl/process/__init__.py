"""The child process that runs verl, the channel to it, and the Ray it uses."""

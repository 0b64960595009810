"""Changes to a request before it is forwarded: sampling, guided choice, the context window."""

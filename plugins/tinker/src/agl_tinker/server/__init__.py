"""A server of the Tinker API over agl-local's network, optimizer and engine."""

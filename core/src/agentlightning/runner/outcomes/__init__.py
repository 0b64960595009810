"""How an attempt ended: status, rewards, returned records and tracebacks."""

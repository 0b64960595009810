"""Who may call: the attempt behind a key, the caller's identity and the size of its request."""

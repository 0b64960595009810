"""Admission of a request: the key's attempt, the caller's identity, the body, and seeds."""

"""Commands that serve until a signal, and the tokens that they accept."""

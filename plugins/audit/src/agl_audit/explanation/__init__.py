"""Explain why a token, a call or a rollout was trained as it was."""

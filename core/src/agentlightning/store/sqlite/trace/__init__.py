"""Spans and model calls of attempts: written, numbered and read."""

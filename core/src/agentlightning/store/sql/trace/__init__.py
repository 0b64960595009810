"""Spans and model calls of attempts: writing, numbering, reading."""

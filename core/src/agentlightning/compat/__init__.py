"""Compatibility with earlier releases; nothing else in the package depends on how they worked."""

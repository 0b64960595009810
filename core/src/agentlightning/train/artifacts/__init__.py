"""Keeps the files of runs in object storage, and brings a run back from there."""

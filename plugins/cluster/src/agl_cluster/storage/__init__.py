"""The files of runs in object storage."""

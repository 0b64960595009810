"""The checks of ``agl doctor``, one subject per file."""

"""The checks of ``agl doctor``, one file a subject."""

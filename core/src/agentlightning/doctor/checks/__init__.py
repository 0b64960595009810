"""One module for each check of ``agl doctor``."""

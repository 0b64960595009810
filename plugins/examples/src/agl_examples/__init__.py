"""The examples of the suite as files of an installed package, and ``agl example``."""

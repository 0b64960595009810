"""The description of a run: typed, read from YAML or keywords, and published as a schema."""

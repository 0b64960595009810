"""The SQLite file: its lock, schema, statements, and its one connection."""

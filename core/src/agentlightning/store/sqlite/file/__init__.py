"""The SQLite file: its lock, schema, migrations, statements, and its one connection."""

"""The SQLite file: its lock, schema, migrations, statements, and and its one connection."""

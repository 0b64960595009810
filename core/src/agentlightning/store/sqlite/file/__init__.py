"""The SQLite file: its lock, schema, migrations, statements, and the one connection that writes it."""

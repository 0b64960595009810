"""The store in tables: what the stores in SQLite and in PostgreSQL share.

Rules, statements and codecs are here; a database adds its connection, and how its writes are committed.
"""

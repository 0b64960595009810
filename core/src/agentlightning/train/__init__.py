"""A run: its description, its folder and record, the session that opens its parts, and the trainer."""

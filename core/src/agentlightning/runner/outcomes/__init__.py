"""How attempts end: what agents return and raise, and how that is recorded."""

"""Names of Agent Lightning 0.2 and 0.3, on today's parts."""

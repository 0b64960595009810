"""Runners of Agent Lightning as actors of a Ray cluster."""

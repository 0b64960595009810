"""Budgets: what calls cost, and the limits on calls, tokens, money and time."""

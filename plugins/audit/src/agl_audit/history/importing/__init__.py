"""Traces that other tools recorded, as rollouts of a store: what ``agl import`` does."""

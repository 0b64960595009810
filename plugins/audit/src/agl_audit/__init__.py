"""Inspect past runs from their stores alone: list, trace, explain, verify.

Nothing here writes to a store, and whatever can be recomputed is recomputed.
"""

"""Looking back at runs, from their stores alone: list, trace, explain, verify.

Nothing here writes to a store, and nothing is believed that can be computed again.
"""

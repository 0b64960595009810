"""Pages in a browser over the store of a run: runs, rollouts, calls, tokens, and how each was credited.

``agl dashboard`` serves them. Nothing here writes to a store, and every page is complete without JavaScript.
"""

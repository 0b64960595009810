"""Several gateways of one run, each a process of its own: they share the store, and what the run tells them.

``pool`` is the run's end, ``main`` the process; ``messages`` is what they say to each other.
"""

"""The gateway of a run: one in its process with a page of metrics, or several, each a process of its own.

Several share the store, and what the run tells them: ``pool`` is the run's end, ``main`` the process;
``messages`` is what they say to each other.
"""

"""DSPy adapter; :mod:`agl_dspy.instrumentor` says how."""

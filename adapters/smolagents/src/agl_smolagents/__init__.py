"""smolagents adapter; :mod:`agl_smolagents.instrumentor` says how."""

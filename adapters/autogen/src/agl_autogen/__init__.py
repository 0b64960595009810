"""AutoGen adapters; :mod:`agl_autogen.instrumentor` says how."""

"""TinyAgents adapter; :mod:`agl_tinyagents.instrumentor` says how."""

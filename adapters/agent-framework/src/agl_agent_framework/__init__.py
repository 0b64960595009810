"""Microsoft Agent Framework adapter; :mod:`agl_agent_framework.instrumentor` says how."""

"""Strands adapter; :mod:`agl_strands_agents.instrumentor` says how."""

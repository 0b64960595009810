"""Pydantic AI adapter; :mod:`agl_pydantic_ai.instrumentor` says how."""

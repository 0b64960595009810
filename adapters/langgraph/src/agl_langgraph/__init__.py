"""LangGraph adapter; :mod:`agl_langgraph.instrumentor` says how."""

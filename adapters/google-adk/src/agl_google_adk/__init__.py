"""Google ADK adapter; :mod:`agl_google_adk.instrumentor` says how."""

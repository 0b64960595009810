"""CrewAI adapter; :mod:`agl_crewai.instrumentor` says how."""

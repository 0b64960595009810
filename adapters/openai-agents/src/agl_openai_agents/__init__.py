"""OpenAI Agents SDK adapter; :mod:`agl_openai_agents.instrumentor` says how."""

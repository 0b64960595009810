"""AgentScope adapter; :mod:`agl_agentscope.instrumentor` says how."""

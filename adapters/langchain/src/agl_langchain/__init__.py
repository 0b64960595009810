"""LangChain adapter; :mod:`agl_langchain.instrumentor` says how."""

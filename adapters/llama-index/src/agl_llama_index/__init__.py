"""LlamaIndex adapter; :mod:`agl_llama_index.instrumentor` says how."""

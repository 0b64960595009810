"""The engine: continuous batching of requests over one policy."""

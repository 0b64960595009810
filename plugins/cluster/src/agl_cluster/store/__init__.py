"""The store over HTTP: server, client, and spans over OTLP."""

"""The store over HTTP: routes, application, client and OTLP."""

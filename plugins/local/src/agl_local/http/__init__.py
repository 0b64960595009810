"""The engine over HTTP: the OpenAI API, the server process and its client."""

"""The engines behind the policies: routes, endpoints, the client, and their answers."""

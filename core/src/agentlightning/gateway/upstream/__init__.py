"""The engines behind the policies: routes, endpoints, pauses, retries and the answers they give."""

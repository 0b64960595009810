"""Event loops and threads for agents, apart from the loop that serves the store and the gateway."""

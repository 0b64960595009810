"""SQL as the agent and its reward need it: run a query safely, compare results, describe a database."""

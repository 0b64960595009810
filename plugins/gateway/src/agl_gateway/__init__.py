"""More of the gateway: the APIs Responses, Conversations and Messages, and budgets."""

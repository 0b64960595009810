"""What the gateway changes in a request or an answer: sampling, context window, reasoning, guided choice."""

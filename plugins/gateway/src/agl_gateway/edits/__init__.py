"""What is changed of the calls of a route: prompts that are too long, and reasoning in answers."""

"""Record rewards, messages, objects, exceptions and operations of agents, and validate these records."""

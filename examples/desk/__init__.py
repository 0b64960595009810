"""A service desk: an agent with a policy, a database of its own in each rollout, and a simulated customer."""

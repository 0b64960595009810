"""Training loops: RL through a driver, evaluation, and algorithms of users and plugins."""

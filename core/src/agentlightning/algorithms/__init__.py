"""What owns a loop: RL through a driver, evaluation, and whatever a plugin adds."""

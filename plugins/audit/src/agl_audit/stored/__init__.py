"""Learning from rollouts that are stored: fine-tuning, rejection sampling, preferences."""

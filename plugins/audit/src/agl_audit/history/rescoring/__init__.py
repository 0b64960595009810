"""``agl rescore``: a reward function over stored rollouts."""

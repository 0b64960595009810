"""Which tasks a step has, chosen by what earlier rollouts earned (``training.curriculum``)."""

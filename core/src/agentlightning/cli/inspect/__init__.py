"""Commands that look at runs: ``runs``, ``rollouts``, ``trace``, ``explain``, ``verify``."""

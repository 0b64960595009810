"""On-policy distillation: a teacher scores every token that the run's policy sampled."""

__all__: list[str] = []

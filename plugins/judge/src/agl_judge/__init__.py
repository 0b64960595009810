"""Rewards that see a whole group of rollouts: functions, judges, rubrics, and OpenAI's graders.

A run names what gives them in its field ``group_reward``. :mod:`.grading` gives each group that has ended to
it and stores what it says as the rewards of the rollouts; :mod:`.client` asks judges.
"""

"""Environments of OpenEnv as dataset, agent and reward.

``tasks("http://…")`` names the episodes of an environment's server, and ``play`` is the agent that plays one:
it asks the run's policy for each action through the gateway, and the server gives the rewards.
"""

from agl_openenv.agent import play
from agl_openenv.session import EnvironmentFailed
from agl_openenv.tasks import tasks

__all__ = ["EnvironmentFailed", "play", "tasks"]

"""Environments of the library verifiers as dataset, agent and reward.

``tasks("name")`` is a taskset as tasks, and ``play`` the agent that runs one: the environment asks the run's
policy through the gateway, and the task's reward functions give the rewards.
"""

from agl_verifiers.supported import check_version

check_version()

from agl_verifiers.agent import EnvironmentFailed, play  # noqa: E402 - these import verifiers
from agl_verifiers.environments import UnusableEnvironment  # noqa: E402
from agl_verifiers.harness import GatewayHarness  # noqa: E402
from agl_verifiers.tasks import tasks  # noqa: E402

__all__ = ["EnvironmentFailed", "GatewayHarness", "UnusableEnvironment", "play", "tasks"]

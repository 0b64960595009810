"""Opening a runner outside the trainer's process: the section ``runner`` of a run's description."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentlightning.plugins.manager import Plugins, pick
from agentlightning.plugins.options import checked_options
from agentlightning.types import UsageError

if TYPE_CHECKING:
    from agentlightning.specs import RemoteRunner, RunnerJob


def open_runner(plugins: Plugins, job: RunnerJob) -> RemoteRunner:
    """Return the runner that ``job.config.runner`` names. UsageError for an unknown kind, a wrong option,
    and whatever the kind itself refuses.
    """
    if job.config.runner is None:
        raise UsageError("runner: give {kind: …}, the name of a runner (`agl plugins` lists them)")
    options = dict(job.config.runner)
    kind = options.pop("kind")
    spec = pick(plugins.runners, "runner", kind)
    return spec.factory(job, checked_options(spec.options(), options, "runner"))

"""Registers the runner ``ray``. The library is imported when a run names it."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import RunnerSpec, lazily, lazy_type


@hookimpl
def agl_runners() -> list[RunnerSpec]:
    return [
        RunnerSpec(
            "ray",
            lazily("agl_ray.actors:make"),
            lazy_type("agl_ray.settings:RayOptions"),
            "actors of a Ray cluster, one for each of its CPUs",
        )
    ]

"""Registers the runner ``kubernetes`` and the command ``agl kubernetes``. The client is imported by use."""

from __future__ import annotations

from agentlightning.hookspecs import hookimpl
from agentlightning.specs import CommandSpec, RunnerSpec, lazily, lazy_type


@hookimpl
def agl_runners() -> list[RunnerSpec]:
    return [
        RunnerSpec(
            "kubernetes",
            lazily("agl_kubernetes.controller:make"),
            lazy_type("agl_kubernetes.settings:KubernetesOptions"),
            "one Job a rollout, in a cluster that the kubeconfig or the pod's own account reaches",
            trusted=False,
        )
    ]


@hookimpl
def agl_commands() -> list[CommandSpec]:
    register = lazily("agl_kubernetes.command:register")
    return [CommandSpec("kubernetes", register, "run rollouts as Jobs, or print the manifests of runners")]

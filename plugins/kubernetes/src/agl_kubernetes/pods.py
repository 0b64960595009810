"""Pods that run ``agl runner``: one template for the Deployment, the Jobs and the controller.

Invariants: no pod runs as root, writes to its image's file system, gains a privilege or gets a token of the
cluster that it does not need. A secret stands in an object of the kind Secret, which
others name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from agentlightning.redaction import SECRET_NAME, redacted
from agl_kubernetes.settings import KubernetesOptions

Manifest = dict[str, Any]
MANAGED_BY = "app.kubernetes.io/managed-by"
COMPONENT = "app.kubernetes.io/component"
INSTANCE = "app.kubernetes.io/instance"
OURS = "agentlightning"
HEALTH_PORT = 8081
"""Port of a long-lived runner's probes."""
GRACE_SECONDS = 15.0
"""Seconds beyond ``drain_seconds`` to write the ends of attempts."""


def labels(options: KubernetesOptions, component: str) -> dict[str, str]:
    """Return the labels of an object: who made it, for which runner, and its part."""
    return {MANAGED_BY: OURS, INSTANCE: options.name, COMPONENT: component}


def runner_command(options: KubernetesOptions, store: str, agent: str | None) -> list[str]:
    """Return the command of a pod: ``agl runner`` on ``store``. ``agent``: ``module:object``, unless the
    image has the run's file.
    """
    what = ["--config", options.config] if options.config else ["--agent", agent or ""]
    isolation = ["--isolation", options.isolation] if options.isolation else []
    return ["agl", "runner", "--store", store, *what, *isolation, "--drain", f"{options.drain_seconds:g}"]


def pod_spec(
    options: KubernetesOptions,
    command: Sequence[str],
    *,
    secret: str,
    service_account: str,
    image: str | None = None,
    cluster_token: bool = False,
    restart: str = "Always",
    container: Mapping[str, Any] | None = None,
    volumes: Sequence[Manifest] = (),
) -> Manifest:
    """Return the specification of a pod. ``secret``: name of the Secret with its token and its secret
    variables. ``container``: further fields of its container.
    """
    spec: Manifest = {
        "serviceAccountName": service_account,
        "automountServiceAccountToken": cluster_token,
        "enableServiceLinks": False,
        "restartPolicy": restart,
        "terminationGracePeriodSeconds": math.ceil(options.drain_seconds + GRACE_SECONDS),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": options.user,
            "runAsGroup": options.user,
            "fsGroup": options.user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(options, command, secret, image, container or {})],
        "volumes": [{"name": "tmp", "emptyDir": {}}, *volumes],
    }
    if options.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in options.image_pull_secrets]
    if options.node_selector:
        spec["nodeSelector"] = dict(options.node_selector)
    if options.tolerations:
        spec["tolerations"] = list(options.tolerations)
    return spec


def secret_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables whose values must stand in a Secret: by their name, or by a password in a URL."""
    return {
        name: value for name, value in env.items() if SECRET_NAME.search(name) or redacted(value) != value
    }


def _variable(name: str, value: str, secret: str) -> Manifest:
    return _of_secret(name, secret) if secret_variables({name: value}) else {"name": name, "value": value}


def _of_secret(name: str, secret: str) -> Manifest:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}}


def _container(
    options: KubernetesOptions,
    command: Sequence[str],
    secret: str,
    image: str | None,
    more: Mapping[str, Any],
) -> Manifest:
    more = dict(more)
    mounts = [{"name": "tmp", "mountPath": "/tmp"}, *more.pop("volumeMounts", ())]
    given = {"HOME": "/tmp", **options.env}
    token = _of_secret("AGL_TOKEN", secret)
    made: Manifest = {
        "name": "runner",
        "image": image or options.image,
        "command": list(command),
        "env": [token, *(_variable(name, value, secret) for name, value in given.items())],
        "resources": options.resources.model_dump(),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
        **more,
    }
    if options.env_from_secrets:
        made["envFrom"] = [{"secretRef": {"name": name}} for name in options.env_from_secrets]
    if options.image_pull_policy:
        made["imagePullPolicy"] = options.image_pull_policy
    if options.working_dir:
        made["workingDir"] = options.working_dir
    return made

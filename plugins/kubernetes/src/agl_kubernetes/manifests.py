"""The manifests that ``agl kubernetes manifests`` prints: all objects of long-lived runners, or of a
controller that makes Jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import yaml

from agl_kubernetes.jobs import COMPONENT_JOB, JobMaker
from agl_kubernetes.pods import HEALTH_PORT, Manifest, labels, pod_spec, runner_command, secret_variables
from agl_kubernetes.settings import KubernetesOptions

RUNNER, CONTROLLER = "runner", "controller"
_API_PORTS = (443, 6443)
_CONFIG_FOLDER = "/etc/agl"


def _without_secrets(options: KubernetesOptions) -> tuple[KubernetesOptions, list[Manifest]]:
    """Return the options without secret variables, and the Secret that holds those, if there are any."""
    hidden = secret_variables(options.env)
    if not hidden:
        return options, []
    name = f"{options.name}-env"
    rest = {key: value for key, value in options.env.items() if key not in hidden}
    update = {"env": rest, "env_from_secrets": [*options.env_from_secrets, name]}
    return options.model_copy(update=update), [
        _object(options, "v1", "Secret", name, RUNNER, stringData=hidden)
    ]


def deployment_manifests(options: KubernetesOptions, maker: JobMaker) -> list[Manifest]:
    """Return the objects of ``options.replicas`` long-lived runners."""
    options, secrets = _without_secrets(options)
    command = runner_command(options, maker.store, maker.agent)
    command += ["--concurrency", str(options.concurrency), "--health", f"0.0.0.0:{HEALTH_PORT}"]
    if maker.run_id:
        command += ["--run", maker.run_id]
    account = options.service_account or options.name
    pod = pod_spec(options, command, secret=options.secret, service_account=account, container=_probes())
    return [
        *secrets,
        *([] if options.service_account else [_account(options, options.name, RUNNER)]),
        _policy(options, maker, RUNNER, options.egress_ports),
        _deployment(options, options.name, RUNNER, options.replicas, pod, "RollingUpdate"),
    ]


def job_manifests(options: KubernetesOptions, maker: JobMaker) -> list[Manifest]:
    """Return the objects of a controller that makes one Job a rollout, and those that its Jobs need."""
    options, secrets = _without_secrets(options)
    name = f"{options.name}-controller"
    config = {
        "agent": {"target": maker.agent or "the.image:agent"},  # by options.config, which wins
        "backend": {"policy": "none"},  # every run's file has one; a controller serves none
        "runner": {"kind": "kubernetes", **options.model_dump(exclude_unset=True), "store": maker.store},
        "store": maker.store,
    }
    run = ["--run", maker.run_id] if maker.run_id else []
    command = ["agl", "kubernetes", "run", "--config", f"{_CONFIG_FOLDER}/run.yaml", *run]
    mount = {"volumeMounts": [{"name": "config", "mountPath": _CONFIG_FOLDER, "readOnly": True}]}
    pod = pod_spec(
        options,
        command,
        secret=options.controller_secret,
        service_account=name,
        image=options.controller_image,
        cluster_token=True,
        container=mount,
        volumes=[{"name": "config", "configMap": {"name": name}}],
    )
    return [
        *secrets,
        *([] if options.service_account else [_account(options, options.name, COMPONENT_JOB)]),
        _account(options, name, CONTROLLER),
        *_rights(options, name),
        _object(options, "v1", "ConfigMap", name, CONTROLLER, data={"run.yaml": yaml.safe_dump(config)}),
        _policy(options, maker, COMPONENT_JOB, options.egress_ports),
        _policy(options, maker, CONTROLLER, _API_PORTS),
        _deployment(options, name, CONTROLLER, 1, pod, "Recreate"),
    ]


def as_yaml(manifests: Sequence[Manifest], options: KubernetesOptions, mode: str) -> str:
    """Return one YAML text of all objects, with what to do first as its comment."""
    secrets = {options.controller_secret: "trainer"} if mode == "jobs" else {options.secret: RUNNER}
    where = f" -n {options.namespace}" if options.namespace else ""
    lines = [
        f'# kubectl create secret generic {name}{where} --from-literal=AGL_TOKEN="$(agl token --role {role})"'
        for name, role in secrets.items()
    ]
    head = ["# Made by `agl kubernetes manifests`. First, where AGL_SECRET is that of the store:", *lines]
    return "\n".join(head) + "\n" + yaml.safe_dump_all(manifests, sort_keys=False)


def _object(
    options: KubernetesOptions, version: str, kind: str, name: str, component: str, **fields: Any
) -> Manifest:
    meta: Manifest = {"name": name, "labels": labels(options, component)}
    if options.namespace:
        meta["namespace"] = options.namespace
    return {"apiVersion": version, "kind": kind, "metadata": meta, **fields}


def _account(options: KubernetesOptions, name: str, component: str) -> Manifest:
    made = _object(options, "v1", "ServiceAccount", name, component)
    return {**made, "automountServiceAccountToken": False}


def _rights(options: KubernetesOptions, name: str) -> list[Manifest]:
    """Return the controller's rights: its Jobs and their Secrets, and to see their pods."""
    rules = [
        {
            "apiGroups": ["batch"],
            "resources": ["jobs"],
            "verbs": ["create", "delete", "get", "list", "watch"],
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
    ]
    rbac = "rbac.authorization.k8s.io"
    subject: Manifest = {"kind": "ServiceAccount", "name": name}
    if options.namespace:
        subject["namespace"] = options.namespace
    role = {"apiGroup": rbac, "kind": "Role", "name": name}
    return [
        _object(options, f"{rbac}/v1", "Role", name, CONTROLLER, rules=rules),
        _object(options, f"{rbac}/v1", "RoleBinding", name, CONTROLLER, roleRef=role, subjects=[subject]),
    ]


def _policy(
    options: KubernetesOptions, maker: JobMaker, component: str, more_ports: Sequence[int]
) -> Manifest:
    """Return what the pods of a component may call: names, the store, the gateway and ``more_ports``. Nobody
    calls them, but at ``ingress_ports``.
    """
    urls = [url for url in (maker.store, options.gateway) if url]
    ports = sorted({*(_port(url) for url in urls), *more_ports})
    names = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    inward = sorted({*options.ingress_ports, *([HEALTH_PORT] if component == RUNNER else [])})
    spec: Manifest = {
        "podSelector": {"matchLabels": labels(options, component)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"ports": [{"protocol": "TCP", "port": port} for port in inward]}] if inward else [],
        "egress": [{"ports": names}, {"ports": [{"protocol": "TCP", "port": port} for port in ports]}],
    }
    name = f"{options.name}-{component}"
    return _object(options, "networking.k8s.io/v1", "NetworkPolicy", name, component, spec=spec)


def _deployment(
    options: KubernetesOptions, name: str, component: str, replicas: int, pod: Manifest, strategy: str
) -> Manifest:
    chosen = labels(options, component)
    spec = {
        "replicas": replicas,
        "selector": {"matchLabels": chosen},
        "strategy": {"type": strategy},
        "template": {"metadata": {"labels": chosen}, "spec": pod},
    }
    return _object(options, "apps/v1", "Deployment", name, component, spec=spec)


def _probes() -> Manifest:
    """Return the probes of a runner: it is alive while its loop turns, ready while the store answers it."""
    asked = {"port": HEALTH_PORT}
    return {
        "ports": [{"name": "health", "containerPort": HEALTH_PORT}],
        "startupProbe": {
            "httpGet": {**asked, "path": "/healthz"},
            "periodSeconds": 5,
            "failureThreshold": 60,
        },
        "livenessProbe": {
            "httpGet": {**asked, "path": "/healthz"},
            "periodSeconds": 20,
            "timeoutSeconds": 10,
        },
        "readinessProbe": {"httpGet": {**asked, "path": "/readyz"}, "periodSeconds": 10},
    }


def _port(url: str) -> int:
    parts = urlsplit(url)
    return parts.port or (443 if parts.scheme == "https" else 80)

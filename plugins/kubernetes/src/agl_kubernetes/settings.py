"""The options of ``runner: {kind: kubernetes, …}``: what the pods are, and how many of them there are."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from agentlightning.types.sections import Section

_LABEL = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")


def _name(value: str) -> str:
    if not _LABEL.fullmatch(value):
        raise ValueError("use lower-case letters, digits and '-', at most 40, a letter first")
    return value


Name = Annotated[str, AfterValidator(_name)]


class ResourcesSection(Section):
    """What a pod asks for and what it may use, in Kubernetes' units."""

    requests: dict[str, str] = {"cpu": "250m", "memory": "512Mi"}
    """What the scheduler keeps free for a pod."""
    limits: dict[str, str] = {"memory": "2Gi"}
    """What a pod may use; above its memory it is killed (``OOMKilled``)."""


class KubernetesOptions(Section):
    """Where the pods run, of which image, and with which rights."""

    image: str = Field(min_length=1)
    """The image: Python with agl-core, the agent and what the agent needs."""
    agent: str | None = None
    """``module:object`` as the image imports it; none: that of the run."""
    config: str | None = None
    """Path of the run's file in the image, instead of ``agent``; needed for ``agent.command``."""
    store: str | None = None
    """URL of the store as pods reach it; none: that of the run."""
    namespace: str | None = None
    """Namespace of the pods; none: that of the kubeconfig's context, or the controller's own."""
    context: str | None = None
    """Context of the kubeconfig; none: its present one."""
    name: Name = "agl-runner"
    """Beginning of the names of all objects."""
    secret: str = "agl-runner"
    """Secret whose key ``AGL_TOKEN`` is a store's token of the role runner (``agl token``), for the
    Deployment; a Job gets a token for its own rollout."""
    controller_secret: str = "agl-controller"
    """Secret whose key ``AGL_TOKEN`` is a token of the role trainer, for a controller in the cluster."""
    controller_image: str | None = None
    """Image of a controller in the cluster; none: that of the pods."""
    parallelism: int = Field(default=16, ge=1)
    """Jobs at a time."""
    replicas: int = Field(default=2, ge=0)
    """Pods of the Deployment."""
    concurrency: int = Field(default=16, ge=1)
    """Rollouts at a time in a pod of the Deployment."""
    isolation: Literal["inline", "process"] | None = None
    """Where a runner runs the agent; none: as the run's file in the image says, else inline."""
    resources: ResourcesSection = ResourcesSection()
    """Requests and limits of a pod."""
    env: dict[str, str] = {}
    """Environment of the agent. A value that is secret by its name (key, token, secret, password, credential)
    or by a password in a URL is put into a Secret."""
    env_from_secrets: list[str] = []
    """Secrets all of whose keys become variables of the agent's environment."""
    service_account: str | None = None
    """Service account of the pods; none: one of their own without rights."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the image is pulled; none: as Kubernetes decides by its tag."""
    image_pull_secrets: list[str] = []
    """Secrets with which the image is pulled."""
    node_selector: dict[str, str] = {}
    """Labels of the nodes that may run the pods."""
    tolerations: list[dict[str, Any]] = []
    """Taints that the pods tolerate, as Kubernetes writes them."""
    user: int = Field(default=10001, ge=1)
    """User and group id of the pods; never root."""
    working_dir: str | None = None
    """Working directory in the image; the agent is imported from there."""
    pending_seconds: float = Field(default=300.0, gt=0)
    """Seconds that a pod may wait for a node, its image and its start; then its Job is given up."""
    drain_seconds: float = Field(default=30.0, ge=0)
    """Seconds that a rollout has to end when its pod is told to go."""
    ttl_seconds: int = Field(default=600, ge=0)
    """Seconds after which an ended Job is removed, with its pod and log."""
    ingress_ports: list[int] = []
    """Ports at which the pods may be reached; none: nobody calls them but the kubelet's probes."""
    egress_ports: list[int] = [443]
    """Ports that the pods may call beside those of store and gateway, e.g. for the agent's tools."""
    gateway: str | None = None
    """URL of the gateway as pods reach it, for the network policy; none: that of the run, if it is known."""

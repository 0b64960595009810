"""The printed manifests: by the published schemas, with the least rights, and without a secret."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

from agentlightning import cli
from agentlightning.types import Rollout, RolloutConfig, UsageError
from agentlightning.types.base import ConfigError
from agl_kubernetes.jobs import JobMaker, key_of
from agl_kubernetes.settings import KubernetesOptions
from plugins.kubernetes.tests.api_server import validated

STORE = "http://store.example:4747"
FULL = {
    "image": "registry.example/agent:1",
    "namespace": "training",
    "env": {"MODE": "fast"},
    "env_from_secrets": ["tools"],
    "image_pull_policy": "Always",
    "image_pull_secrets": ["registry"],
    "node_selector": {"pool": "cpu"},
    "tolerations": [{"key": "agents", "operator": "Exists", "effect": "NoSchedule"}],
    "working_dir": "/app",
    "isolation": "process",
    "gateway": "https://gateway.example",
    "ingress_ports": [9000],
}


def write(folder: Path, **runner: Any) -> Path:
    described = {
        "agent": {"target": "my_agent:solve"},
        "backend": {"policy": "policy"},
        "store": STORE,
        "runner": {"kind": "kubernetes", "image": "agent:1", **runner},
    }
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(described))
    return file


def printed(folder: Path, mode: str, *words: str, **runner: Any) -> list[dict[str, Any]]:
    line = ["kubernetes", "manifests", "-c", str(write(folder, **runner)), "--mode", mode, *words]
    result = CliRunner().invoke(cli.app(line), line)
    if result.exception is not None:
        raise result.exception
    return [*yaml.safe_load_all(result.stdout)]


def of_kind(manifests: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [one for one in manifests if one["kind"] == kind]


@pytest.mark.plugins
@pytest.mark.parametrize("mode", ["deployment", "jobs"])
@pytest.mark.parametrize("runner", [{}, FULL], ids=["least", "full"])
def test_every_manifest_satisfies_the_published_schemas(
    tmp_path: Path, mode: str, runner: dict[str, Any]
) -> None:
    manifests = printed(tmp_path, mode, **runner)
    for one in manifests:
        validated(one)
        assert one["metadata"].get("namespace") == runner.get("namespace")
    kinds = [one["kind"] for one in manifests]
    assert kinds == (
        ["ServiceAccount", "NetworkPolicy", "Deployment"]
        if mode == "deployment"
        else [
            *("ServiceAccount", "ServiceAccount", "Role", "RoleBinding", "ConfigMap"),
            *("NetworkPolicy", "NetworkPolicy", "Deployment"),
        ]
    )


@pytest.mark.plugins
def test_a_wrong_field_fails_the_validation(tmp_path: Path) -> None:
    [deployment] = of_kind(printed(tmp_path, "deployment"), "Deployment")
    for change in (
        lambda one: one["spec"]["template"]["spec"]["containers"][0].update(comand=["x"]),
        lambda one: one["spec"].update(replicas="two"),
        lambda one: one["spec"].pop("selector"),
    ):
        wrong = copy.deepcopy(deployment)
        change(wrong)
        with pytest.raises(kubernetes_validate.ValidationError):
            validated(wrong)


@pytest.mark.plugins
@pytest.mark.parametrize("mode", ["deployment", "jobs"])
def test_no_pod_is_root_or_writes_to_its_image_or_holds_a_secret_in_plain_text(
    tmp_path: Path, mode: str
) -> None:
    manifests = printed(tmp_path, mode)
    for deployment in of_kind(manifests, "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        [container] = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert pod["automountServiceAccountToken"] == (mode == "jobs")
        [token] = [one for one in container["env"] if one["name"] == "AGL_TOKEN"]
        assert "secretKeyRef" in token["valueFrom"] and "value" not in token
        assert container["resources"]["requests"] and container["resources"]["limits"]["memory"]
    if mode == "deployment":
        assert {"livenessProbe", "readinessProbe", "startupProbe"} <= container.keys()
        assert "--health" in container["command"]


@pytest.mark.plugins
@pytest.mark.parametrize("mode", ["deployment", "jobs"])
def test_a_secret_variable_stands_in_a_secret_and_nowhere_else(tmp_path: Path, mode: str) -> None:
    env = {"MODE": "fast", "TOOL_API_KEY": "hidden-word", "HTTPS_PROXY": "http://me:hidden-word@proxy:1"}
    manifests = printed(tmp_path, mode, **{"env": env, "env_from_secrets": []})
    [secret] = of_kind(manifests, "Secret")
    assert secret["stringData"] == {name: value for name, value in env.items() if name != "MODE"}
    assert "hidden-word" not in str([one for one in manifests if one is not secret])
    named = str([one for one in manifests if one is not secret])
    assert secret["metadata"]["name"] in named and "fast" in named


def test_a_job_names_a_secret_of_its_own_which_goes_with_it() -> None:
    env = {"MODE": "fast", "TOOL_API_KEY": "hidden-word"}
    maker = JobMaker(KubernetesOptions(image="a:1", env=env), STORE, "my_agent:solve", None)
    job = maker.job(Rollout(rollout_id="ro", input=1))
    secret = maker.secret({"metadata": {**job["metadata"], "uid": "u"}}, "the-token")
    validated(secret)
    name = job["metadata"]["name"]
    [container] = job["spec"]["template"]["spec"]["containers"]
    refs = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in container["env"] if "valueFrom" in one}
    assert refs == {key: {"name": name, "key": key} for key in ("AGL_TOKEN", "TOOL_API_KEY")}
    assert secret["stringData"] == {"AGL_TOKEN": "the-token", "TOOL_API_KEY": "hidden-word"}
    [owner] = secret["metadata"]["ownerReferences"]
    assert (owner["name"], owner["uid"], secret["metadata"]["name"]) == (name, "u", name)
    assert "hidden-word" not in str(job)


@pytest.mark.plugins
def test_the_controller_may_do_what_it_does_and_no_more(tmp_path: Path) -> None:
    manifests = printed(tmp_path, "jobs", **{"namespace": "training"})
    [role] = of_kind(manifests, "Role")
    rights = {
        (group, kind): {*rule["verbs"]}
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for kind in rule["resources"]
    }
    assert rights == {
        ("batch", "jobs"): {"create", "delete", "get", "list", "watch"},
        ("", "pods"): {"get", "list", "watch"},
        ("", "secrets"): {"create"},
    }
    [config] = of_kind(manifests, "ConfigMap")
    described = yaml.safe_load(config["data"]["run.yaml"])
    assert described["runner"]["image"] == "agent:1" and described["store"] == STORE
    assert described["agent"] == {"target": "my_agent:solve"}


@pytest.mark.plugins
def test_the_network_policy_names_the_ports_of_store_and_gateway(tmp_path: Path) -> None:
    [policy] = of_kind(
        printed(tmp_path, "deployment", gateway="http://g:8080", egress_ports=[]), "NetworkPolicy"
    )
    names, others = policy["spec"]["egress"]
    assert [one["port"] for one in names["ports"]] == [53, 53]
    assert [one["port"] for one in others["ports"]] == [4747, 8080]
    assert policy["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": 8081}]}]


@pytest.mark.plugins
@pytest.mark.parametrize(
    ("runner", "said"),
    [
        ({"imag": "x"}, "runner.imag: there is no such option. Did you mean 'image'?"),
        ({"parallelism": 0}, "runner.parallelism"),
        ({"name": "Not A Name"}, "runner.name: .*lower-case"),
        ({"user": 0}, "runner.user"),
        ({"kind": "ray"}, "no runner of the kind kubernetes"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, runner: dict[str, Any], said: str) -> None:
    with pytest.raises((ConfigError, UsageError), match=said):
        printed(tmp_path, "deployment", **runner)


def test_a_job_is_valid_whatever_the_rollouts_id_is() -> None:
    maker = JobMaker(KubernetesOptions(image="a"), STORE, "my_agent:solve", "a run/with ✗")
    rollout = Rollout(
        rollout_id="Any ID / with ✗ and " + "length" * 40,
        config=RolloutConfig(timeout_seconds=60.0),
        attempts=2,
    )
    job = maker.job(rollout)
    validated(job)
    key = key_of(job)
    assert key is not None and (key.rollout_id, key.number) == (rollout.rollout_id, 3)
    assert job["metadata"]["name"].endswith("-3") and len(job["metadata"]["name"]) < 63
    assert job["spec"]["backoffLimit"] == 0 and job["spec"]["ttlSecondsAfterFinished"] == 600
    assert job["spec"]["activeDeadlineSeconds"] == 300 + 60 + 30 + 15
    assert maker.job(rollout) == job

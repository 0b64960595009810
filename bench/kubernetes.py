"""Rollouts as Jobs, and manifests by the published schemas: ``make test-kubernetes``. The last line is JSON.

The tests of the plugin run first. Then an agent is trained for a step with a Job for each rollout, at an API
server that runs each Job's command here, and every manifest that is printed is validated.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from counted_tests import Outcomes
from plugins.kubernetes.api_server import VERSIONS, api_server, validated

import agentlightning as agl
from agentlightning.train.config import from_fields
from agl_cluster.store import server
from agl_kubernetes.command import manifests_of

ROOT = Path(__file__).resolve().parents[1]
SECRET = "a secret for this run, made by no one else"
OPTIONS = {"threads": 1, "engine": "thread", "max_len": 512}
JOB_LIMITS = {"timeout_seconds": 600.0, "unresponsive_seconds": 600.0}


async def trained(folder: Path) -> dict[str, Any]:
    """Train for a step with Jobs; return what became of the rollouts and Jobs."""
    os.environ["AGL_SECRET"] = SECRET
    served = await server.start(folder / "s.sqlite", "127.0.0.1", 0)
    path = os.pathsep.join(str(ROOT / part) for part in ("examples", "tests"))
    async with api_server(folder, {}) as (api, kubeconfig):
        os.environ["KUBECONFIG"] = str(kubeconfig)
        runner = {
            "kind": "kubernetes",
            "image": "bench:1",
            "agent": "calc_x.agent:solve",
            "parallelism": 2,
            "env": {"PYTHONPATH": path},
        }
        from calc_x.agent import solve
        from calc_x.datasets import load

        trainer = agl.Trainer(
            agl.GRPO(group_size=2),
            policy=ROOT / "examples/calc_x/policy",
            options=OPTIONS,
            steps=1,
            batch_size=2,
            evaluate_sampled=False,
            store=served.url,
            output=folder / "runs",
            trackers=[],
            runner=runner,
            **JOB_LIMITS,
        )
        summary = await trainer.afit(solve, load("generated:train", limit=2), [])
        jobs = api.requests["POST jobs"]
    found = await served.store.query_rollouts(limit=1000)
    await served.close()
    ended = sum(str(one.status) == "succeeded" for one in found)
    return {"rollouts": len(found), "ended": ended, "jobs": jobs, "steps": summary.get("steps")}


def manifests() -> tuple[int, int]:
    """Return how many manifests are printed, and how many satisfy the schemas."""
    made = valid = 0
    runner = {"kind": "kubernetes", "image": "agent:1", "agent": "my_agent:solve"}
    config = from_fields({"runner": runner, "store": "http://store.example:4747"})
    for mode in ("deployment", "jobs"):
        for one in yaml.safe_load_all(manifests_of(config, mode, None)):
            made += 1
            try:
                validated(one)
                valid += 1
            except Exception as error:
                print(f"{mode}: {one['kind']}: {error}", file=sys.stderr)
    return made, valid


def main() -> int:
    """Run all of it."""
    outcomes = Outcomes()
    where = str(ROOT / "tests/plugins/kubernetes")
    pytest.main(["-q", "-m", "", f"--rootdir={ROOT}", where], plugins=[outcomes])
    with tempfile.TemporaryDirectory() as folder:
        run = asyncio.run(trained(Path(folder)))
    made, valid = manifests()
    summary = {
        "tests": outcomes.tests,
        "passed": outcomes.passed,
        "manifests": made,
        "valid": valid,
        "schemas": list(VERSIONS),
        **run,
    }
    print(json.dumps(summary))
    ok = outcomes.passed == outcomes.tests > 0 and valid == made and run["ended"] == run["rollouts"] > 0
    return 0 if ok and run["jobs"] >= run["rollouts"] else 1


if __name__ == "__main__":
    sys.exit(main())

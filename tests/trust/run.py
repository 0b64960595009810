"""What each kind of agent reaches: an attacker is trained in this process, in its own, as a command, in a
Job, and as a command in a Job, and tries each reach.

    PYTHONPATH=tests python tests/trust/run.py [KIND …]        (or: make trust)

Each kind is a real run of one step with the local driver. The judge gives every answer 0, so nothing may be
trained: a forged reward that trains is an open cell. The last line is one JSON object: the cells, those that
were tried, those that are open, those of them that the table of SECURITY.md names, and by name the ``new``
ones, which it does not name, and the ``stale`` ones, which it names though they are closed. Exit status 1 if
there is one of either, or a cell was not tried.

This process drops the rights that root has beyond those of a user. Pods of the test's API server are
processes of this machine, so the attacker in one does not look at other processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("inline", "process", "command", "job", "job-command")
"""In the order of the table's columns."""
OWN = ("own-reward", "own-selection")
"""Cells that are read from what was trained."""
SECRETS = ("AGL_SECRET", "AGL_SIGNING_KEY", "JUDGE_KEY")
OPTIONS = {"threads": 1, "max_len": 1024}
_CAPABILITIES = 41
_PR_CAPBSET_DROP = 24


def documented(text: str) -> dict[str, dict[str, bool]]:
    """Return reach → kind → whether the table of SECURITY.md says that it is open."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if (name := re.search(r"\(`([a-z-]+)`\)$", cells[0])) and len(cells) == 1 + len(KINDS):
            found[name[1]] = {
                kind: cell.startswith("open") for kind, cell in zip(KINDS, cells[1:], strict=True)
            }
    return found


async def run_kind(kind: str, folder: Path) -> dict[str, str | None]:
    """Train the attacker once; return reach → the way in, or ``None``."""
    from trust.agents import attacker, grade
    from trust.attacks import AGENT

    import agentlightning as agl
    from agentlightning.child_environment import engine_key
    from agentlightning.store import SQLiteStore
    from agl_cluster.store import server

    meeting = folder / "meeting"
    meeting.mkdir(parents=True)
    task = {"id": "t", "question": "2 + 3", "answer": f"gold-word-{secrets.token_hex(4)}",
            "folder": str(meeting), "kind": kind, "run": f"trust-{kind}"}  # fmt: skip
    agent: Any = attacker
    words = [sys.executable, str(ROOT / "tests/trust/attacks.py"), kind, "{task.folder}", "{task.question}"]
    if kind in ("command", "job-command"):
        agent = agl.CommandAgent(words, reward=grade, name=AGENT, private=["answer"])
    more: dict[str, Any] = {"isolation": "process" if kind == "process" else "inline"}
    served, key = None, engine_key("JUDGE_KEY")
    async with contextlib.AsyncExitStack() as stack:
        if kind in ("job", "job-command"):
            served = await server.start(folder / "s.sqlite", "127.0.0.1", 0)
            stack.push_async_callback(served.close)
            what = {"agent": "trust.agents:attacker"} if kind == "job" else _in_image(folder, words)
            more |= {"store": served.url, "runner": {**await _cluster(stack, folder), **what}}
        await _train(agent, task, folder, key, more)
        store = served.store if served else SQLiteStore(folder / "runs" / task["run"] / "store.sqlite")
        if served is None:
            stack.push_async_callback(store.close)
        trained = await _trained(store, task["run"], json.loads((meeting / "first.json").read_text()))
    reached: dict[str, str | None] = json.loads((meeting / "reached.json").read_text())
    return reached | trained


async def _train(
    agent: Any, task: dict[str, str], folder: Path, key: str | None, more: dict[str, Any]
) -> None:
    """Train an attacker for a step, beside an operator's judge with this key. ``more``: where it runs."""
    from agl_testing import ScriptedModelServer
    from trust.attacks import AGENT, JUDGE

    import agentlightning as agl
    from agl_local.policy.bundled import tiny_policy

    with ScriptedModelServer(lambda body: JUDGE) as judge:
        endpoint = agl.LLM(endpoint=judge.url, model="scripted", api_key=key)
        trainer = agl.Trainer(
            agl.GRPO(group_size=2, credit="per_agent"),
            policy={"policy": tiny_policy(), "judge": endpoint},
            policies={AGENT: "policy"},
            options=OPTIONS,
            steps=1,
            batch_size=1,
            concurrency=2,
            timeout_seconds=600.0,
            unresponsive_seconds=600.0,
            evaluate_sampled=False,
            output=folder / "runs",
            run=task["run"],
            trackers=[],
            log="",
            **more,
        )
        telling = asyncio.create_task(_tell_engines(Path(task["folder"]), _engines()))
        try:
            await trainer.afit(agent, [task], [])
        finally:
            telling.cancel()


async def _cluster(stack: contextlib.AsyncExitStack, folder: Path) -> dict[str, Any]:
    """Start an API server that runs Jobs; return the section ``runner``."""
    from plugins.kubernetes.api_server import api_server

    # The kubelet of the tests gives pods the environment of this process, a real one does not.
    stack.callback(os.environ.__setitem__, "JUDGE_KEY", os.environ.pop("JUDGE_KEY"))
    _, kubeconfig = await stack.enter_async_context(api_server(folder, {}))
    os.environ["KUBECONFIG"] = str(kubeconfig)
    return {"kind": "kubernetes", "image": "trust:1", "parallelism": 2,
            "env": {"PYTHONPATH": str(ROOT / "tests")}}  # fmt: skip


def _in_image(folder: Path, words: Sequence[str]) -> dict[str, str]:
    """Write the run's file that the image of a command holds; return where it is."""
    import yaml
    from trust.attacks import AGENT

    agent = {"command": [*words], "reward": "trust.agents:grade", "name": AGENT}
    described = {"agent": agent, "backend": {"policy": "none"}, "environment": {"private": ["answer"]}}
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump(described))
    return {"config": str(file)}


async def _tell_engines(meeting: Path, before: set[str]) -> None:
    """Write the addresses of the run's engines, but those of ``before``, into the attacker's folder, once it
    runs. Other programs of this machine may listen too, and are not attacked.
    """
    while not (meeting / "first.json").exists():  # to look at all objects disturbs modules that are imported
        await asyncio.sleep(0.1)
    (meeting / "engines.tmp").write_text(json.dumps({"urls": sorted(_engines() - before)}))
    (meeting / "engines.tmp").rename(meeting / "engines.json")


def _engines() -> set[str]:
    from trust.attacks import upstreams

    return {one.url.rstrip("/") for one in upstreams() if one.trainable}


async def _trained(store: Any, run_id: str, first: dict[str, Any]) -> dict[str, str | None]:
    """Return whether the forged reward was trained, and whether the hidden call would be left out."""
    import agentlightning as agl
    from agentlightning.credit import assign
    from agentlightning.types.failure import read_failure_table

    steps = await store.query_steps(run_id)
    tokens = sum(step.metrics.get("tokens_trained", 0.0) for step in steps)
    ids = [one.rollout_id for one in await store.query_rollouts(run_id=run_id, limit=10)]
    records = [
        msgspec.structs.replace(record, rewards=[
            msgspec.structs.replace(reward, value=float(record.rollout.rollout_id == first["rollout_id"]))
            for reward in record.rewards
        ])
        for record in await store.records(ids)
    ]  # fmt: skip
    batch = assign(records, agl.GRPO(group_size=2), version=0, failure=read_failure_table(None))
    left = [
        reason
        for ledger in batch.ledgers
        if ledger.rollout_id == first["rollout_id"]
        for reason in ledger.left_out
        if reason not in ("frozen-policy", "error") and not reason.startswith("refused-")
    ]
    return {
        "own-reward": f"{tokens:.0f} tokens trained" if tokens else None,
        "own-selection": ", ".join(left) or None,
    }


def main(kinds: Sequence[str]) -> int:
    """Try all cells of these kinds, and compare them with the table."""
    from trust.attacks import REACHES

    table = documented((ROOT / "SECURITY.md").read_text())
    names = [*REACHES, *OWN]
    cells = {(kind, name) for kind in kinds for name in names}
    tried: dict[tuple[str, str], str | None] = {}
    for kind in kinds:
        with tempfile.TemporaryDirectory(prefix=f"agl-trust-{kind}-") as folder:
            try:
                found = asyncio.run(run_kind(kind, Path(folder)))
            except Exception as error:
                print(f"{kind}: {type(error).__name__}: {error}", file=sys.stderr)
                continue
        tried |= {(kind, name): way for name, way in found.items()}
        for name in names:
            said = f"open: {found[name]}" if found.get(name) else "closed" if name in found else "not tried"
            print(f"{kind:11} {name:14} {said}", file=sys.stderr)
    is_open = {cell for cell, way in tried.items() if way is not None}
    named = {(kind, name) for kind, name in cells if table.get(name, {}).get(kind)}
    new, stale = sorted(is_open - named), sorted(named & tried.keys() - is_open)
    summary = {
        "cells": len(cells),
        "tried": len(tried),
        "open": len(new),
        "documented": len(is_open & named),
        "closed": len(tried.keys() - is_open),
        "new": [f"{kind}: {name}: {tried[kind, name]}" for kind, name in new],
        "stale": [f"{kind}: {name}" for kind, name in stale],
    }
    print(json.dumps(summary))
    return 0 if not new and not stale and cells == tried.keys() and table.keys() == {*names} else 1


def begin() -> None:
    """Start this script anew, with secrets to find and without the rights of root."""
    if os.geteuid() == 0:
        for capability in range(_CAPABILITIES):
            ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    words = {name: f"trust-word-{secrets.token_hex(12)}" for name in SECRETS}
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **words})


if __name__ == "__main__":
    if "JUDGE_KEY" not in os.environ:
        begin()
    sys.exit(main(sys.argv[1:] or KINDS))

"""Who may do what at the store's server, and whether it answers as its OpenAPI document says.

    PYTHONPATH=tests python bench/access/run.py --openapi-python PYTHON [--examples 12] [--seed 1]
                                                                                   (or: make test-access)

First the authorisation matrix (``tests/contract/access.py``): every route of the table, and every method in a
batch, × every kind of bearer × own and foreign attempt. Then schemathesis, once for each role: no 5xx,
statuses and bodies as declared, bad input refused. ``--openapi-python`` has schemathesis and
openapi-spec-validator (``scripts/environment openapi``).

The last line is one JSON object; exit status 1 unless every cell is as declared, nothing foreign was reached
and schemathesis found no failure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from contract.access import SECRET, TOKEN, matrix

from agentlightning.keys import Keys
from agentlightning.store import SQLiteStore
from agl_cluster.roles import Revoked, Role, RoleTokens, revoked_file
from agl_cluster.store.server import ServedStore, start

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "store-openapi.json"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "ignored_auth",
    "unsupported_method",
)
VALIDATE = "import json, sys, openapi_spec_validator as v; v.validate(json.load(open(sys.argv[1])))"


def say(text: str) -> None:
    """Report progress."""
    print(text, file=sys.stderr, flush=True)


async def run_matrix(served: ServedStore, tokens: RoleTokens) -> dict[str, Any]:
    """Ask for every cell."""
    began = time.monotonic()
    found = await matrix(served.store, served.url, tokens)
    for line in found.wrong[:20]:
        say(f"  not as declared: {line}")
    say(f"{found.as_declared} of {found.cells} cells as declared ({time.monotonic() - began:.0f} s)")
    return {"cells": found.cells, "as_declared": found.as_declared, "foreign_access": found.foreign_access}


async def tokens_by_role(served: ServedStore, tokens: RoleTokens) -> dict[str, str | None]:
    """A bearer for each role, and none."""
    lease = await served.store.start_rollout({"q": 1}, worker_id="worker")
    key = Keys(SECRET).mint(lease.rollout.rollout_id, lease.attempt.attempt_id, fence=lease.attempt.fence)
    issued = {role.value: tokens.issue(role)[0] for role in (Role.RUNNER, Role.TRAINER, Role.ADMIN)}
    return {"nobody": None, "attempt": key, **issued}


async def schemathesis(python: str, url: str, role: str, token: str | None, examples: int, seed: int) -> Any:
    """Run schemathesis as a role; return its report."""
    with tempfile.TemporaryDirectory(prefix="agl-openapi-") as folder:
        report = Path(folder) / "report.json"
        command = [python, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", "--no-color"]
        command += ["--phases", "coverage,fuzzing", "--max-examples", str(examples), "--seed", str(seed)]
        command += ["--checks", ",".join(CHECKS), "--continue-on-failure", "--warnings", "off"]
        command += ["--generation-database", "none", "--report", "json", "--report-json-path", str(report)]
        if token is not None:
            command += ["--header", f"Authorization: Bearer {token}"]
        environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        printed = (await process.communicate())[0].decode(errors="replace")
        if not report.exists():
            raise RuntimeError(f"schemathesis made no report as {role}:\n{printed[-3000:]}")
        return json.loads(report.read_text(encoding="utf-8")), printed


async def run_schemathesis(
    python: str, served: ServedStore, tokens: RoleTokens, given: Any
) -> dict[str, int]:
    """Run it as each role; return cases and failures."""
    cases = failures = 0
    for role, token in (await tokens_by_role(served, tokens)).items():
        report, printed = await schemathesis(python, served.url, role, token, given.examples, given.seed)
        made, failed = report["test_cases"]["generated"], len(report["failures"]) + len(report["errors"])
        unfinished = report["operations"]["selected"] - report["operations"]["tested"]
        cases, failures = cases + made, failures + failed + unfinished
        say(f"schemathesis as {role}: {made} requests, {failed} failures")
        if failed or unfinished:
            say(printed[-6000:])
    return {"schemathesis_cases": cases, "schemathesis_failures": failures}


def validate(python: str) -> None:
    """Validate the committed document against the schema of OpenAPI 3.1."""
    subprocess.run([python, "-c", VALIDATE, str(DOCUMENT)], check=True)
    say(f"{DOCUMENT.name} is valid OpenAPI 3.1")


async def trial(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Serve a store under a secret, and ask it."""
    store = SQLiteStore(folder / "store.sqlite")
    served = await start(store, port=0, token=TOKEN)
    tokens = RoleTokens(SECRET, Revoked(revoked_file(folder / "store.sqlite")))
    try:
        found = await run_matrix(served, tokens)
        return {**found, **await run_schemathesis(given.openapi_python, served, tokens, given)}
    finally:
        await served.close()


def main() -> int:
    """Try, and print."""
    parser = argparse.ArgumentParser(description="The store's server: roles, and its OpenAPI document.")
    parser.add_argument("--openapi-python", required=True, help="an interpreter with schemathesis")
    parser.add_argument(
        "--examples", type=int, default=12, help="of each operation, beyond the coverage phase"
    )
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    os.environ["AGL_SECRET"] = SECRET.decode()
    validate(given.openapi_python)
    with tempfile.TemporaryDirectory(prefix="agl-access-") as folder:
        told = asyncio.run(trial(given, Path(folder)))
    print(json.dumps(told))
    sound = told["cells"] == told["as_declared"] > 0 == told["foreign_access"]
    return 0 if sound and told["schemathesis_cases"] and not told["schemathesis_failures"] else 1


if __name__ == "__main__":
    sys.exit(main())

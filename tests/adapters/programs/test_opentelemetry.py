"""``opentelemetry-instrument`` finds the adapters by entry points and breaks nothing outside an attempt."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from adapters.programs.test_programs import APPS, PROGRAMS, App, reply, run_app
from agl_testing import ScriptedModelServer
from marks import sampled

INSTRUMENT = "from opentelemetry.instrumentation.auto_instrumentation import run; run()"
OTEL = {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
HERE = [app for app in PROGRAMS if app.missing() is None]
pytestmark = pytest.mark.plugins


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in {
        **OTEL,
        "CREWAI_DISABLE_TELEMETRY": "true",
        "CREWAI_TRACING_ENABLED": "false",
    }.items():
        monkeypatch.setenv(name, value)
    yield


@pytest.mark.slow
@pytest.mark.parametrize("app", sampled(HERE, 0), ids=lambda app: app.file.removesuffix(".py"))
async def test_outside_of_an_attempt_a_program_runs_as_ever(app: App) -> None:
    with ScriptedModelServer(reply) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", INSTRUMENT, sys.executable, str(APPS / app.file),
            env={**os.environ, "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-own"},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        assert b"sunny" in out + err and len(server.log) == sum(app.agents.values())
        for exchange in server.log:
            assert exchange.headers["authorization"] == "Bearer sk-own"
            assert not [name for name in exchange.headers if name.startswith("x-agl")]


@pytest.mark.slow
async def test_under_agl_run_it_is_captured(tmp_path: Path) -> None:
    if "agl_program" not in {point.name for point in entry_points(group="opentelemetry_instrumentor")}:
        pytest.skip("agl-core was installed here before it had this entry point")
    app = HERE[-1]
    outcome = await run_app(app, tmp_path, sys.executable, "-c", INSTRUMENT)
    assert outcome.summary.verdicts == {"exact": sum(app.agents.values())}
    assert outcome.summary.agents == dict(app.agents)

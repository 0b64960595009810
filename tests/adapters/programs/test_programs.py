"""Programs as the frameworks' own pages show them, unmodified, under ``agl run``: all exact, agents named."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from agl_programs.summary import UNNAMED
from agl_testing import ScriptedModelServer, tool_call
from marks import sampled

from plugins.programs.tests.running import Outcome, run_command

APPS = Path(__file__).parent / "apps"
pytestmark = pytest.mark.plugins


@dataclass(frozen=True)
class App:
    """A program, what it needs, and what it does under :func:`reply`. ``major``: of its framework."""

    file: str
    needs: str
    agents: Mapping[str, int]
    adapter: str | None
    tools: Mapping[str, int] = field(default_factory=lambda: {"get_weather": 1})
    major: str | None = None
    distribution: str = ""

    def missing(self) -> str | None:
        """Why it cannot run in this environment."""
        try:
            found = importlib.util.find_spec(self.needs)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return f"{self.needs} is not installed"
        try:
            if self.major and not version(self.distribution).startswith(f"{self.major}."):
                return f"{self.distribution} {self.major} is not installed"
        except PackageNotFoundError:
            return f"{self.distribution} is not installed"
        return None


PROGRAMS = [
    App("bare_openai.py", "openai", {UNNAMED: 4}, None, tools={}),
    App("langchain_agent.py", "langchain.agents", {"forecaster": 2}, "langchain"),
    App("langgraph_graph.py", "langgraph.graph", {"planner": 1, "writer": 1}, "langgraph", tools={}),
    App("autogen_team.py", "autogen_agentchat", {"writer": 2, "critic": 1}, "autogen"),
    App("openai_agents_handoff.py", "agents.tracing", {"triage": 1, "forecaster": 2}, "openai-agents"),
    App("crewai_crew.py", "crewai", {"researcher": 2, "writer": 1}, "crewai"),
    App(
        "agentscope1_react.py",
        "agentscope",
        {"Friday": 2},
        "agentscope",
        major="1",
        distribution="agentscope",
    ),
    App(
        "agentscope2_agent.py",
        "agentscope",
        {"Friday": 2},
        "agentscope",
        major="2",
        distribution="agentscope",
    ),
    App(
        "agent_framework_agent.py",
        "agent_framework",
        {"WeatherAgent": 4},
        "agent-framework",
        tools={"get_weather": 2},
    ),
    App("google_adk_agent.py", "google.adk", {"weather_agent": 2}, "google-adk"),
    App(
        "semantic_kernel_agent.py",
        "semantic_kernel",
        {"forecaster": 2, "critic": 1},
        None,
        tools={"WeatherPlugin-get_weather": 1},
    ),
]


def reply(body: dict[str, Any]) -> Any:
    """Hand over where that is possible, ask for the weather once, and say what it is."""
    offered = [tool["function"]["name"] for tool in body.get("tools") or ()]
    told = [str(message.get("content")) for message in body["messages"] if message["role"] == "tool"]
    if (body.get("response_format") or {}).get("type") == "json_schema":
        return '{"good": true}'
    if not told and (handoff := next((name for name in offered if name.startswith("transfer_to")), None)):
        return tool_call(handoff, {}, "call_handoff")
    weather = next((name for name in offered if name.endswith("get_weather")), None)
    if weather is not None and not any("sunny" in text for text in told):
        return tool_call(weather, {"city": "Paris"}, "call_weather")
    if "generate_response" in offered:  # how AgentScope 1 ends
        return tool_call("generate_response", {"response": "sunny"}, "call_end")
    return "sunny"


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """No framework reports home."""
    monkeypatch.setenv("CREWAI_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("CREWAI_TRACING_ENABLED", "false")
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "0")
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")


async def run_app(app: App, folder: Path, *before: str, **options: Any) -> Outcome:
    command = [*before, sys.executable, str(APPS / app.file)]
    with ScriptedModelServer(reply) as server:
        outcome = await run_command(folder, command, server, timeout=240.0, **options)
        answered = sorted(answer.ids for exchange in server.answered() for answer in exchange.answers)
    assert outcome.summary.exit_codes == [0], outcome.summary
    assert answered == sorted(call.response_ids or [] for call in outcome.records[0].calls)
    return outcome


@pytest.mark.parametrize("app", sampled(PROGRAMS, 0), ids=lambda app: app.file.removesuffix(".py"))
async def test_an_unmodified_program_is_captured_exactly(app: App, tmp_path: Path) -> None:
    if why := app.missing():
        pytest.skip(why)
    assert "agentlightning" not in (APPS / app.file).read_text()
    outcome = await run_app(app, tmp_path)
    assert outcome.summary.verdicts == {"exact": sum(app.agents.values())}, outcome.summary.unsure
    assert outcome.summary.agents == dict(app.agents)
    tools = {name: n for name, n in outcome.summary.tools.items() if name.endswith("get_weather")}
    assert tools == dict(app.tools)
    assert app.adapter is None or app.adapter in outcome.summary.adapters
    assert outcome.summary.warnings == []


@pytest.mark.slow
async def test_adapters_may_be_chosen(tmp_path: Path) -> None:
    app = next(one for one in PROGRAMS if one.needs == "langgraph.graph")
    if why := app.missing():
        pytest.skip(why)
    outcome = await run_app(app, tmp_path, adapters=["langchain", "no-such-adapter"])
    assert outcome.summary.adapters == ["langchain"] and set(outcome.kinds) == {"exact"}
    (warning,) = outcome.summary.warnings
    assert "no-such-adapter" in warning and "not installed" in warning

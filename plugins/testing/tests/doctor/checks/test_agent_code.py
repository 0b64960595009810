"""The doctor names what in an agent's code goes past the gateway, and nothing in one that does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from agl_testing.doctor.checks.agent_code import ADVICE, Fault, faults_of, faults_of_import, watched_hosts
from agl_testing.doctor.checks.capture import judge_capture
from core.credit.builders import make_call, make_record, make_wire

from agentlightning.train.configured import import_target
from agentlightning.types.base import ConfigError

Write = Callable[[str], Path]
WRONG: list[tuple[str, list[str]]] = [
    ('model = ChatOpenAI(model="gpt-4o-mini")', ["import_time_model", "vendor_model"]),
    ("client = openai.AsyncOpenAI()", ["import_time_model"]),
    ('graph = create_react_agent("openai:gpt-4o", [])', ["import_time_model", "vendor_model"]),
    ('MODEL = "claude-sonnet-4-5"\ndef f(llm): return client(MODEL)', ["vendor_model"]),
    ('def f(llm): return OpenAI(base_url="https://api.openai.com/v1")', ["own_base_url"]),
    ('URL = "http://10.0.0.1:8000/v1"\ndef f(llm): return LLM(base_url=URL)', ["own_base_url"]),
    ('def f(llm): return OpenAI(api_key=os.environ["OPENAI_API_KEY"])', ["vendor_key"]),
    ('def f(llm): return OpenAI(api_key="sk-secret")', ["vendor_key"]),
    ("class Solver:\n    client = Anthropic()", ["import_time_model"]),
]
RIGHT = """
import os
NAME = "solver"
BOOK = {"o1": 1}
tool = make_tool("calculate")
def build(llm):
    return ChatOpenAI(model=llm.model, base_url=llm.endpoint, api_key=llm.api_key or "none")
if __name__ == "__main__":
    print(build(ChatOpenAI()))
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(text: str) -> Path:
        path = tmp_path / "written_agent.py"
        path.write_text(text)
        return path

    return written


@pytest.mark.parametrize(("text", "kinds"), WRONG)
def test_what_goes_past_the_gateway_is_named_with_its_line(text: str, kinds: list[str], write: Write) -> None:
    faults = faults_of([write(text)])
    assert [fault.kind for fault in faults] == kinds
    line = next(number for number, one in enumerate(text.splitlines(), 1) if "(" in one)
    assert all(fault.place == f"written_agent.py:{line}" for fault in faults)
    assert "sk-secret" not in str(faults)


def test_a_client_made_in_the_rollout_is_right_and_an_installed_module_is_not_looked_at(write: Write) -> None:
    assert faults_of([write(RIGHT), Path(pytest.__file__)]) == []


def test_an_import_that_fails_names_the_model_that_was_made(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write("def ChatOpenAI(model): raise RuntimeError('no key')\nmodel = ChatOpenAI('gpt-4o')").parent
    monkeypatch.syspath_prepend(str(folder))
    with pytest.raises(ConfigError) as refused:
        import_target("written_agent:solve", "agent.target")
    assert [fault.place for fault in faults_of_import(refused.value)] == ["written_agent.py:2"] * 2


def test_faults_are_told_where_calls_went_past_and_not_where_all_are_exact() -> None:
    fault = Fault("own_base_url", "agent.py:3", "gives OpenAI an address of its own, http://x/v1")
    none = make_record(calls=[], reward=1.0)
    check = judge_capture([none], elsewhere={"api.openai.com": 2}, faults=[fault])
    assert (check.status, check.title) == ("fail", f"{fault.place} {fault.what}")
    assert ADVICE["own_base_url"] in check.advice and "2 × api.openai.com" in " ".join(check.detail)
    assert check.data["faults"] == [fault._asdict()]
    call = make_call("c", [1], [2], response_id="resp", tags={"agent": "a"})
    whole = make_record("r0", [call], wire=[make_wire(call)], reward=1.0)
    assert fault.place not in str(judge_capture([whole], faults=[fault]))


async def test_requests_are_counted_by_host_and_the_clients_are_as_before() -> None:
    httpx = pytest.importorskip("httpx")
    former = httpx.AsyncClient.send
    answers = httpx.MockTransport(lambda request: httpx.Response(200))
    with watched_hosts() as seen:
        async with httpx.AsyncClient(transport=answers) as client:
            await client.post("https://api.openai.com/v1/chat/completions")
            await client.post("https://example.org/search")
    assert dict(seen) == {"api.openai.com": 1} and httpx.AsyncClient.send is former

"""Text that others wrote (tasks, tags, reasons, answers, logs) is shown by a terminal and not obeyed."""

from __future__ import annotations

import ast
import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from contract import runs

from agentlightning import cli
from agentlightning.types import Call, Span

HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31m\u202egnp.exe\u2066\u200f\r\x7f"
UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
SECRET = "http://me:hidden-word@engine/v1?api_key=hidden-word"
COMMANDS = (
    ["runs"],
    ["runs", "--json"],
    ["rollouts", runs.RUN, "--calls"],
    ["rollouts", runs.RUN, "--json"],
    ["trace", "ro-0-0"],
    ["trace", "ro-1-3"],
    ["trace", "ro-0-0", "--json"],
    ["explain", "ro-0-0"],
    ["explain", "ro-0-0", "--json"],
    ["compare", runs.RUN, "20260102-030405-other-s1"],
    ["top", "--once", "--every", "0.1"],
    ["top", "--once", "--every", "0.1", "--json"],
    ["logs", runs.RUN],
    ["logs", runs.RUN, "--json"],
    ["verify", runs.RUN],
    ["chats", runs.RUN, "--output", "chats.jsonl"],
    ["trace", "no such \x1b[2J rollout"],
    ["doctor", "--config", "bad.yaml"],
    ["train", "--config", "bad.yaml"],
    ["eval", "--config", "bad.yaml"],
)


def worse(value: Any) -> Any:
    """The same value with hostile text at the end of every text in it but ids."""
    if isinstance(value, dict):
        return {key: worse(one) for key, one in value.items()}
    if isinstance(value, list):
        return [worse(one) for one in value]
    return value + HOSTILE + SECRET if isinstance(value, str) else value


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two runs of hostile records."""
    calls_of, spans_of, add_rollout = runs.calls_of, runs.spans_of, runs.add_rollout

    def calls(*given: Any) -> list[Call]:
        return [
            msgspec.structs.replace(
                call,
                tags=worse(call.tags),
                response=worse(call.response),
                request={"messages": worse(call.request["messages"])},
                model=worse(call.model),
            )
            for call in calls_of(*given)
        ]

    def spans(*given: Any) -> list[Span]:
        kept = ("agl.", "agentlightning.", "gen_ai.operation", "gen_ai.response.id")
        return [
            msgspec.structs.replace(
                span,
                attributes={k: v if k.startswith(kept) else worse(v) for k, v in span.attributes.items()},
            )
            for span in spans_of(*given)
        ]

    async def rollouts(*given: Any, **more: Any) -> str:
        return await add_rollout(*given, **{**more, "task_id": worse("task")})

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "calls_of", calls)
    monkeypatch.setattr(runs, "spans_of", spans)
    monkeypatch.setattr(runs, "add_rollout", rollouts)
    monkeypatch.setattr(runs, "RAISED", worse("/agent.py:1 in solve"))
    info = {"about": {"agent": worse("agent · solve")}, "driver": worse("local"), "note": worse("note")}
    for name in (runs.RUN, "20260102-030405-other-s1"):
        settings = {"settings": {"name": worse(name)}, "options": {"lr": worse(name)}}
        folder = asyncio.run(runs.make_run(tmp_path / "runs", name=name, info=info | settings))
        (folder / "training.log").write_text(f"2026-01-31 12:00:00 {name} INFO {HOSTILE} {SECRET}\n")
    (tmp_path / "bad.yaml").write_text(json.dumps({"agent": {"target": f"no.module{HOSTILE}:x"}, HOSTILE: 1}))
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_passes_controls_or_passwords_on(
    place: Path, command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["agl", *command])
    with pytest.raises(SystemExit):
        cli.main()
    said = "".join(capsys.readouterr())
    assert said.strip()
    assert not UNSAFE.findall(said), said
    assert "hidden-word" not in said.replace("\n", "").replace(" ", "")


SOURCES = [
    path
    for folder in ("core/src", "plugins")
    for path in sorted(
        (Path(__file__).parents[3] / folder).rglob("src/**/*.py" if folder == "plugins" else "**/*.py")
    )
]


def test_only_our_console_prints() -> None:
    """rich's own console would pass controls on: one file makes ours of it."""
    imports: Callable[[ast.AST], bool] = lambda node: (  # noqa: E731
        isinstance(node, ast.ImportFrom)
        and node.module == "rich.console"
        and any(name.name == "Console" for name in node.names)
    )
    found = [path.name for path in SOURCES if any(map(imports, ast.walk(ast.parse(path.read_text()))))]
    assert len(SOURCES) > 300 and found == []

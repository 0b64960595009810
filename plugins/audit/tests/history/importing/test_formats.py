"""The same conversation in every format is the same rollout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentlightning.plugins.manager import load
from agentlightning.types import UsageError
from agl_audit.history.importing.files import TraceFile
from agl_audit.history.importing.trace import ImportedTrace
from plugins.audit.tests.history.importing.written import ANSWERS, ASKED, LIBRARIES, MODEL, WRITERS, lines

FORMATS = load().table("agl_import_formats")
UNSCORED = ("langfuse", "phoenix")
"""The APIs of these give scores apart from observations and spans."""


def read(name: str, folder: Path) -> list[ImportedTrace]:
    if name in LIBRARIES and WRITERS[name] is LIBRARIES[name][1]:
        pytest.importorskip(LIBRARIES[name][0])
    file = TraceFile(WRITERS[name](folder), FORMATS)
    assert file.format.name == name
    return file.traces()


def test_every_format_is_written_here() -> None:
    assert set(FORMATS) == set(WRITERS)


@pytest.mark.parametrize("name", WRITERS)
def test_a_conversation_is_the_same_in_every_format(name: str, tmp_path: Path) -> None:
    [trace] = read(name, tmp_path)
    check(trace)
    assert trace.rewards == [("reward", 0.5)]


@pytest.mark.parametrize("name", LIBRARIES)
def test_what_a_tools_own_library_writes_is_the_same(name: str, tmp_path: Path) -> None:
    library, write = LIBRARIES[name]
    pytest.importorskip(library)
    file = TraceFile(write(tmp_path), FORMATS)
    [trace] = file.traces()
    assert file.format.name == name
    check(trace)
    assert trace.rewards == ([] if name in UNSCORED else [("reward", 0.5)])


def check(trace: ImportedTrace) -> None:
    """Whether it is the conversation, whole."""
    assert [call.messages for call in trace.calls] == list(ASKED)
    assert [call.answer for call in trace.calls] == list(ANSWERS)
    assert trace.error is None
    assert trace.task in ("What is 2 + 3?", {"question": "What is 2 + 3?"})
    for n, call in enumerate(trace.calls):
        assert (call.model, call.agent, call.sampling) == (MODEL, "solver", {"temperature": 0.7})
        assert (call.prompt_tokens, call.completion_tokens) == (20 + n, 7)
        assert call.error is None and 0 < call.start <= call.end


def test_ids_of_v03_are_counted_and_not_taken(tmp_path: Path) -> None:
    [trace] = read("v03", tmp_path)
    assert trace.left_out["token-ids"] == 2


@pytest.mark.parametrize(
    "content, said",
    [
        ("", "holds no traces"),
        ("nonsense", "line 1: neither JSON nor JSON Lines"),
        ('{"a": 1}\n{"b"', "line 2: neither JSON nor JSON Lines"),
        ('{"a": 1}', "no format knows its first entry; choose one by --format: agentops"),
        (b"\xff\xfe", "not UTF-8"),
        (
            lines([{"run_type": "llm", "inputs": {}}, {"id": 1}]),
            "not of the format langsmith: an entry that is no run",
        ),
        (json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": ["x"]}]}]}), "not of the format otlp"),
        (json.dumps({"id": "t", "observations": ["ob-1"]}), "its observations are ids"),
    ],
)
def test_a_file_that_cannot_be_read_says_where(content: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "traces.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=said):
        TraceFile(path, FORMATS).traces()


def test_a_file_that_is_missing_or_of_another_format_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        TraceFile(tmp_path / "none.json", FORMATS)
    with pytest.raises(UsageError, match="no format 'xml'; there are agentops"):
        TraceFile(WRITERS["v03"](tmp_path), FORMATS, "xml")

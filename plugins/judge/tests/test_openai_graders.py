"""OpenAI's graders: documented files give documented scores, and what cannot be done is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agl_programs.sandbox import bubblewrap

import agentlightning as agl
from agl_judge.client import BadVerdict
from agl_judge.openai_graders import sandbox
from agl_judge.openai_graders.formula import Formula
from agl_judge.openai_graders.grader import OpenAIGrader, read_part
from agl_judge.openai_graders.templates import fill
from plugins.judge.tests.documented import FILES, problems

NAMES = frozenset({"a", "b"})


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_documented_graders_give_documented_scores(file: Path) -> None:
    pytest.importorskip("sacrebleu")
    _, said = problems(file)
    assert not said


@pytest.mark.parametrize(
    ("text", "value"),
    [("a + b * 2", 7.0), ("(a + b) / 2", 2.0), ("-a ^ 2", -1.0), ("2 ^ b ^ a", 8.0), ("max(a, b, 0.5)", 3.0)],
)
def test_a_formula_is_arithmetic(text: str, value: float) -> None:
    assert Formula(text, NAMES).value({"a": 1.0, "b": 3.0}) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "c", "a.b", "a[0]", "a if b else 1", "lambda: a", "[a]", "a == b", "a and b", "'a'", "True",
        "a ** b", "a // b", "a % b", "max()", "pow(a, b)", "max(*a)", "max(a, key=b)", "(a := b)", "a; b",
        "a +", "x" * 20_000, "0.5 * a)", "f'{a}'", "1j",
    ],
)  # fmt: skip
def test_anything_else_is_no_formula(text: str) -> None:
    with pytest.raises(ValueError):
        Formula(text, NAMES)


@pytest.mark.parametrize("text", ["1 / (a - 1)", "log(a - 1)", "sqrt(-a)", "exp(a * 10000)", "(-b) ^ 0.5"])
def test_a_formula_without_a_value_is_no_score(text: str) -> None:
    with pytest.raises(BadVerdict):
        Formula(text, NAMES).value({"a": 1.0, "b": 3.0})


def test_templates_fill_paths_and_never_an_empty_text() -> None:
    names = {"item": {"a": [{"b": "x"}], "n": 1, "o": {"k": None}}, "sample": {"output_text": "{{ item.n }}"}}
    assert fill("{{item.a[0].b}}-{{ item.n }}-{{item.o}}", names) == 'x-1-{"k": null}'
    assert fill("{{ sample.output_text }}", names) == "{{ item.n }}"  # what was said is no template
    for path in ("item.c", "item.a[1]", "item.a.b", "sample.output_json.x"):
        with pytest.raises(BadVerdict, match="there is no"):
            fill("{{ " + path + " }}", names)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"type": "string_check", "operation": "contains", "input": "a", "reference": "b"},
            "give eq, ne, like",
        ),
        ({"type": "string_check", "operation": "eq", "input": "{{ env.KEY }}", "reference": "b"}, "no path"),
        ({"type": "string_check", "operation": "eq", "input": 1, "reference": "b"}, "give a text"),
        (
            {"type": "string_check", "operation": "eq", "input": "a", "reference": "b", "weight": 1},
            "no field",
        ),
        (
            {"type": "text_similarity", "input": "a", "reference": "b", "evaluation_metric": "wer"},
            "it is one of",
        ),
        ({"type": "score_model", "input": [], "model": "m"}, "no list of messages"),
        ({"type": "score_model", "input": [{"content": "x"}], "model": "m", "range": [1, 0]}, "range"),
        ({"type": "score_model", "input": [{"content": [{"type": "input_image"}]}], "model": "m"}, "images"),
        (
            {"type": "label_model", "input": [{"content": "x"}], "labels": ["a"], "passing_labels": ["b"]},
            "some of",
        ),
        ({"type": "multi", "graders": {}, "calculate_output": "1"}, "no object of graders"),
        (
            {"type": "multi", "graders": {"x": {"type": "y"}}, "calculate_output": "x"},
            r"graders\.x: the type 'y'",
        ),
        ([], "the type None"),
    ],
)
def test_what_is_no_documented_grader_is_refused_by_name(given: Any, why: str) -> None:
    with pytest.raises(agl.UsageError, match=why):
        read_part(given, "g.json", judge=True)


def test_a_model_without_a_judge_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "g.json"
    file.write_text(json.dumps({"type": "score_model", "input": [{"content": "x"}], "model": "gpt"}))
    with pytest.raises(agl.UsageError, match="it asks the model 'gpt'"):
        OpenAIGrader.read(file)
    assert OpenAIGrader.read(file, judge="judge").judges == ("judge",)
    file.write_text("{")
    with pytest.raises(agl.UsageError, match="cannot be read as JSON"):
        OpenAIGrader.read(file)


def test_code_that_cannot_be_isolated_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise agl.UsageError("there is no bwrap")

    monkeypatch.setattr(bubblewrap, "check", missing)
    with pytest.raises(agl.UsageError, match="code of somebody else: there is no bwrap"):
        read_part({"type": "python", "source": "def grade(s, i): return 1"}, "g.json", judge=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return open('/etc/shadow').read()", "No such file"),
        ("import os; return len(os.environ['SECRET'])", "KeyError"),
        ("import socket; socket.create_connection(('127.0.0.1', 80), 2)", "refused|unreachable"),
        ("open('/usr/x', 'w')", "Read-only"),
        ("return len(bytearray(4 << 30))", "MemoryError|limit of memory"),
        ("import time; time.sleep(600)", "limit of seconds"),
        ("return 'good'", "could not convert"),
        ("return float('nan')", "gave no number"),
        ("raise SystemExit", "gave no number"),
    ],
)
async def test_code_reaches_nothing(body: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        sandbox.sandbox()
    except agl.UsageError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("SECRET", "x")
    monkeypatch.setitem(sandbox.LIMITS, "seconds", 5)
    with pytest.raises(BadVerdict, match=said):
        await sandbox.grade(f"def grade(sample, item):\n    {body}", {}, {})

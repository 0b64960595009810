"""Agents whose every answer has a form: the policy knows what their frameworks send, and they train."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from agl_testing import ScriptedModelServer, tool_call

import agentlightning as agl
from agl_local.policy.folder import Policy, load_policy
from agl_local.text.constraints import CallForm, calls_grammar
from agl_local.text.grammar import GrammarCompiler
from calc_x.datasets import load
from calc_x.problems import generate
from calc_x.warmstart import row
from typed_answers.forms import FORMS, HERE, Form
from typed_answers.policy import called, rewards, scaffold, tokenizer

MODULES = {"pydantic-ai": "pydantic_ai", "smolagents": "smolagents"}
EXPRESSION, RESULT, CALL = "3+4", "7", "call_0123456789abcdef01234567"
ids = [form.name for form in FORMS]


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(HERE / "policy")


def agent(form: Form) -> Any:
    """The module with the framework's agent; skips where the framework is not installed."""
    name = MODULES[form.name]
    pytest.importorskip(name)
    return importlib.import_module(f"typed_answers.{name}_agent")


def test_fixed_pieces_are_one_token_each_and_the_tokenizer_is_the_one_the_code_builds(policy: Policy) -> None:
    for piece in scaffold():
        (token,) = policy.tokenizer.encode(piece)
        assert not policy.tokenizer.is_special(token)
    assert json.loads(tokenizer().backend.to_str()) == json.loads(policy.tokenizer.backend.to_str())


@pytest.mark.parametrize("form", FORMS, ids=ids)
def test_the_grammar_allows_the_tokens_that_the_teacher_writes(form: Form, policy: Policy) -> None:
    grammars = GrammarCompiler(policy.tokenizer, policy.config.vocab_size)
    last = "string" if form.prose else "number"
    fields = {"calculate": ("expression", "string"), form.last: ("answer", last)}
    schemas = {
        name: {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
        for name, (field, kind) in fields.items()
    }
    form_of_calls = CallForm.of(policy.tokenizer.syntax, policy.tokenizer.special_tokens)
    assert form_of_calls is not None
    grammar = grammars.check(calls_grammar(schemas, form_of_calls, many=True))
    for example in form.examples("Anna has 3.", EXPRESSION, CALL):
        written, prompt = row(policy.tokenizer, example)
        assert len(grammars.bits(grammar, written[prompt:])) == len(written) - prompt <= 10


@pytest.mark.parametrize("form", FORMS, ids=ids)
def test_the_policy_knows_the_form_and_errs_as_its_teacher(form: Form, policy: Policy) -> None:
    greedy = rewards(policy, form, generate("heldout", 96))
    assert 0.08 <= sum(greedy) / len(greedy) <= 0.55


def test_an_answer_is_one_call() -> None:
    call = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "3+4"}}\n</tool_call>'
    assert called(call) == ("calculate", "3+4")
    assert called(call + call) is None and called("7") is None


@pytest.mark.plugins
@pytest.mark.parametrize("form", FORMS, ids=ids)
async def test_the_framework_sends_these_messages(form: Form) -> None:
    solve = agent(form).solve

    def reply(body: dict[str, Any]) -> Any:
        if len(body["messages"]) == 2:
            return tool_call("calculate", {"expression": EXPRESSION}, CALL)
        return tool_call(form.last, {"answer": RESULT if form.prose else int(RESULT)}, "call_1")

    with ScriptedModelServer(reply) as server:
        llm = agl.LLM(endpoint=server.url, model="scripted", api_key="none")
        reward = solve({"question": "Anna has 3.", "result": RESULT}, llm=llm)
        assert (await reward if inspect.isawaitable(reward) else reward) == 1.0
    first, second = (exchange.body for exchange in server.log)
    assert said(first) == form.first("Anna has 3.")
    assert said(second) == form.second("Anna has 3.", EXPRESSION, RESULT, CALL)
    assert [tool["function"]["name"] for tool in second["tools"]] == ["calculate", form.last]
    assert first["tool_choice"] == second["tool_choice"] == "required"


def said(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a request, their text as one string."""
    return [
        {**message, "content": "\n".join(part["text"] for part in message["content"])}
        if isinstance(message.get("content"), list)
        else message
        for message in body["messages"]
    ]


@pytest.mark.plugins
@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS, ids=ids)
def test_a_step_is_trained(form: Form, tmp_path: Path) -> None:
    trainer = agl.Trainer(
        policy=HERE / "policy",
        steps=1,
        batch_size=4,
        output=tmp_path,
        trackers=[],
        options={"threads": 1, "engine": "thread"},
    )
    summary = trainer.fit(agent(form).solve, load("generated:train", 4), load("generated:heldout", 8))
    totals = summary["totals"]
    assert totals["calls"] == totals["calls_exact"] >= 60
    assert totals["rollouts_failed"] == 0 and totals["tokens_trained"] > 0
    assert totals["logprob_gap_max"] < 1e-4

"""What critic and editor are told, and how their answers are read.

The critic reads a prompt with rollouts that it led to, and writes what is wrong with it: the textual gradient
of Pryzant et al. 2023 (arXiv 2305.03495, section 2.1). The editor reads prompt and critique, and writes the
next prompt between ``<prompt>`` and ``</prompt>``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from agentlightning.algorithms.tasks import stable_seed
from agentlightning.types import Call, PromptTemplate
from agl_apo.scoring import Scored
from agl_apo.templates import BadTemplate, edited, placeholders

LONGEST = 2_000
"""Characters of a task, message or answer that the critic reads; the middle of longer ones is left out."""
CRITIC = (
    "You find out why a prompt of an AI agent leads to wrong results. You read the prompt template and some "
    "runs of the agent with it: the task, what was said, and the reward that the run got (higher is better). "
    "Say in a few sentences what in the prompt caused the low rewards and what it lacks. Do not solve the "
    "tasks."
)
EDITOR = (
    "You improve the prompt of an AI agent. You read the prompt template and a critique of it. Write a "
    "better template that answers the critique. Keep every placeholder exactly as it is written, use no "
    "other placeholder, and add no other curly braces. Write the whole new template between <prompt> and "
    "</prompt>, and nothing else."
)
Messages = list[dict[str, str]]


def evidence(scored: Sequence[Scored], size: int, seed: int, *key: object) -> list[Scored]:
    """Return ``size`` of the rollouts for the critic: those with the lowest rewards, in random order among
    equals. The order is a function of ``seed`` and ``key``.
    """
    rng = random.Random(stable_seed(seed, "evidence", *key))
    mixed = sorted(scored, key=lambda _: rng.random())
    return sorted(mixed, key=lambda one: one.reward)[:size]


def to_criticise(name: str, prompt: PromptTemplate, scored: Sequence[Scored], agent: str | None) -> Messages:
    """Return the request for a critique of prompt ``name``. ``agent``: show its calls alone, if it made
    any.
    """
    runs = "\n\n".join(_run(number, one, agent) for number, one in enumerate(scored, 1))
    text = f"Prompt template {name!r}:\n<prompt>\n{prompt.template}\n</prompt>\n\n{runs}"
    return [{"role": "system", "content": CRITIC}, {"role": "user", "content": text}]


def to_edit(name: str, prompt: PromptTemplate, critique: str) -> Messages:
    """Return the request for a better prompt ``name``."""
    kept = ", ".join(sorted(placeholders(prompt))) or "none"
    text = (
        f"Prompt template {name!r}:\n<prompt>\n{prompt.template}\n</prompt>\n\n"
        f"Its placeholders: {kept}\n\nCritique:\n{critique}"
    )
    return [{"role": "system", "content": EDITOR}, {"role": "user", "content": text}]


def read_critique(text: str) -> str:
    """Return the critique; :class:`BadTemplate` for an empty one."""
    if not text.strip():
        raise BadTemplate("empty", "the critic wrote nothing")
    return text.strip()


def read_edit(before: PromptTemplate, text: str) -> PromptTemplate:
    """Return the template between ``<prompt>`` and ``</prompt>``. Raise :class:`BadTemplate` for one that
    cannot be used.
    """
    _, opened, rest = text.partition("<prompt>")
    body, closed, _ = rest.rpartition("</prompt>")
    if not opened or not closed:
        raise BadTemplate("no-prompt", "the editor wrote no text between <prompt> and </prompt>")
    return edited(before, body)


def _run(number: int, scored: Scored, agent: str | None) -> str:
    task = scored.task.content
    shown = _short(task if isinstance(task, str) else json.dumps(task))
    lines = [f"Run {number}", f"Task: {shown}", in_words(scored, agent), f"Reward: {scored.reward:g}"]
    return "\n".join(line for line in lines if line)


def in_words(scored: Scored, agent: str | None) -> str:
    """Return what was said in a rollout, and why it failed if it did."""
    lines = [line for call in _calls(scored, agent) for line in _call(call)]
    if scored.failed:
        attempt = scored.record.attempt
        why = (attempt.reason if attempt else None) or "the agent gave no reward"
        lines.append(f"The run failed: {_short(why)}")
    return "\n".join(lines)


def _calls(scored: Scored, agent: str | None) -> list[Call]:
    calls = [call for call in scored.record.calls if call.status == "ok"]
    own = [call for call in calls if agent is not None and agent in call.tags.values()]
    return own or calls


def _call(call: Call) -> list[str]:
    request, response = call.request or {}, call.response or {}
    said = [
        f"{message.get('role', '?')}: {_short(_content(message))}"
        for message in request.get("messages", [])
        if isinstance(message, dict)
    ]
    return [*said, f"answer: {_short(_content(response) or str(response.get('text', '')))}"]


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    parts = [content if isinstance(content, str) else "" if content is None else json.dumps(content)]
    if calls := message.get("tool_calls"):
        parts.append("calls " + "; ".join(_tool(call) for call in calls))
    return " ".join(part for part in parts if part)


def _tool(call: Any) -> str:
    function = call.get("function", {}) if isinstance(call, dict) else {}
    return f"{function.get('name')}({function.get('arguments')})"


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} […] {text[-LONGEST // 2 :]}"

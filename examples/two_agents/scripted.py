"""Scripted models: a reporter that obeys its prompt, a critic that compares with the wishes, an editor."""

from __future__ import annotations

import json
import re
from typing import Any

BEGIN = "Begin with 'Result:'."
UNIT = "Write EUR after the number."
NOTHING_ELSE = "Write nothing else."
RULES = {"beginning": BEGIN, "currency": UNIT, "rest": NOTHING_ELSE}


def reporter(body: dict[str, Any]) -> str:
    """Write the report as the prompt's rules say, and chatter where no rule forbids it."""
    prompt = body["messages"][-1]["content"]
    text = prompt.rpartition("\nResult: ")[2].partition("\n")[0].strip()[:20]
    text = f"Result: {text}" if BEGIN in prompt else text
    text = f"{text} EUR" if UNIT in prompt else text
    return text if NOTHING_ELSE in prompt else f"{text} I was glad to work this out for you, dear customer."


def critic(body: dict[str, Any]) -> str:
    """Name the first thing in which a report differs from what was wanted."""
    text = body["messages"][-1]["content"]
    for run in text.split("\n\nRun ")[1:]:
        wanted = json.loads(re.search(r"^Task: (.*)$", run, re.MULTILINE)[1])["wanted"]  # type: ignore[index]
        said = re.findall(r"^answer: (.*)$", run, re.MULTILINE)
        if not said:
            continue
        if not said[-1].startswith("Result:"):
            return f"The prompt does not fix the beginning: {wanted!r} was wanted."
        if "EUR" not in said[-1]:
            return f"The prompt does not ask for the currency: {wanted!r} was wanted."
        if len(said[-1]) > 40:
            return f"The prompt allows more than the result, the rest is chatter: {wanted!r} was wanted."
    return "The reports are as wanted."


def editor(body: dict[str, Any]) -> str:
    """Add the rule that the critique asks for."""
    text = body["messages"][-1]["content"]
    prompt = text.partition("<prompt>\n")[2].partition("\n</prompt>")[0]
    critique = text.rpartition("Critique:")[2]
    rule = next((said for what, said in RULES.items() if what in critique and said not in prompt), "")
    first, _, rest = prompt.partition("\n")
    return f"<prompt>{first} {rule}\n{rest}</prompt>" if rule else f"<prompt>{prompt}</prompt>"


def helper(body: dict[str, Any]) -> str:
    """Answer as critic or editor, whichever is asked."""
    return editor(body) if "Critique:" in body["messages"][-1]["content"] else critic(body)

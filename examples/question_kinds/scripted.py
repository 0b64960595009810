"""A scripted critic and editor for the prompt of the question kinds.

They know neither the data nor the model: the critic reads the rollouts that it is shown, and reports which
kind was taken for which, with an example; the editor changes the prompt by one of a few moves, chosen by a
checksum of the critique. Which change helps the model, only the model's rewards say.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from typing import Any

WORDS = 3
"""Words of a question's beginning that a cue has."""
OPENINGS = (
    "What kind of question is this?",
    "Say what the question asks for.",
    "Which rule fits the question?",
    "Name the kind of the question.",
)


def critic(body: dict[str, Any]) -> str:
    """Report the mistakes in the rollouts: question, what was answered, what is right."""
    text = body["messages"][-1]["content"]
    found = []
    for run in text.split("\n\nRun ")[1:]:
        task = json.loads(re.search(r"^Task: (.*)$", run, re.MULTILINE)[1])  # type: ignore[index]
        said = re.search(r"^answer: (.*)$", run, re.MULTILINE)
        if said and said[1] != task["answer"]:
            found.append(f"- {task['question']!r} is {task['answer']}, and {said[1]} was answered")
    return "Mistakes:\n" + "\n".join(found) if found else "The rollouts show no mistake."


def editor(body: dict[str, Any]) -> str:
    """Change the prompt by a move that the critique's checksum chooses."""
    text = body["messages"][-1]["content"]
    prompt = text.partition("<prompt>\n")[2].partition("\n</prompt>")[0]
    critique = text.rpartition("Critique:\n")[2]
    mistakes = re.findall(r"^- (['\"])(.*)\1 is (\w+), and (\w+) was answered$", critique, re.MULTILINE)
    moves = (_cues, _open, _cues, _example, _without_labels, _cues)
    dice = zlib.crc32(f"{prompt}\n{critique}".encode())
    lines = prompt.split("\n")
    for turn in range(len(moves)):
        changed = moves[(dice + turn) % len(moves)](lines, [(q, right) for _, q, right, _ in mistakes], dice)
        if changed != lines:
            return "<prompt>{}</prompt>".format("\n".join(changed))
    return f"<prompt>{prompt}</prompt>"


Mistakes = list[tuple[str, str]]


def _cues(lines: list[str], mistakes: Mistakes, dice: int) -> list[str]:
    """Add a line ``first words -> kind`` for the kind that is most often missed."""
    if not mistakes:
        return lines
    kind = Counter(right for _, right in mistakes).most_common(1)[0][0]
    heads = [" ".join(q.lower().split()[:WORDS]) for q, right in mistakes if right == kind]
    rule = f"{', '.join(dict.fromkeys(heads[:2]))} -> {kind}".translate({ord("{"): None, ord("}"): None})
    return lines if rule in lines else [*lines[:-1], rule, lines[-1]]


def _open(lines: list[str], mistakes: Mistakes, dice: int) -> list[str]:
    """Replace the first line by another opening."""
    return [OPENINGS[dice % len(OPENINGS)], *lines[1:]]


def _example(lines: list[str], mistakes: Mistakes, dice: int) -> list[str]:
    """Add a mistaken question with its right kind."""
    if not mistakes:
        return lines
    question, right = mistakes[dice % len(mistakes)]
    example = f"{question} -> {right}".translate({ord("{"): None, ord("}"): None})
    return lines if example in lines else [*lines[:-1], example, lines[-1]]


def _without_labels(lines: list[str], mistakes: Mistakes, dice: int) -> list[str]:
    """End with the question alone, or with the question and an arrow."""
    last = "{question}" if lines[-1].endswith("->") else "{question} ->"
    return [*lines[:-1], last]


def helper(body: dict[str, Any]) -> str:
    """Answer as critic or editor, whichever is asked."""
    return editor(body) if "Critique:" in body["messages"][-1]["content"] else critic(body)

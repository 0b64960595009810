"""The agent, as a program that imports nothing of Agent Lightning: it takes the question as its argument,
finds the model in its environment, and writes the answer on standard output.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from typing import Any

from tools import calculate

TURNS = 4
CALCULATE = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Calculate the value of an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}
HERE = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the model is near: no proxy between


def complete(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Ask the model that the environment names, and return its message."""
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages, "tools": [CALCULATE]}
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    with HERE.open(request) as answer:
        message: dict[str, Any] = json.load(answer)["choices"][0]["message"]
    return message


def called(arguments: str) -> str:
    """Return what a call of the calculator gives; of one that is wrong, the error, which the model reads."""
    try:
        return calculate(**json.loads(arguments))
    except (TypeError, ValueError) as error:
        return f"error: {error}"


def main(question: str) -> None:
    """Answer a question."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Use the calculator."},
        {"role": "user", "content": question},
    ]
    for _ in range(TURNS):
        message = complete(messages)
        if not message.get("tool_calls"):
            print(message["content"] or "")
            return
        messages.append(
            {"role": "assistant", "content": message["content"], "tool_calls": message["tool_calls"]}
        )
        for call in message["tool_calls"]:
            content = called(call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


main(sys.argv[1])

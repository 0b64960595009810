"""A scripted model that plays any preset through the finish tool, with as much talk as asked for.

It is no player of any strength: it picks one of the choices that the question names, or of the tool's enum,
and fills speech and reasoning with words. It shows what games of talkative models cost, and lets tests play
whole games without a model. ``script = chatter(words=60)``; serve it with a scripted model server.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Script = Callable[[Mapping[str, Any]], dict[str, Any]]
CHOICES = re.compile(r"\[choice: (.+)\]\s*$")
WORDS = tuple(
    [
        "我觉得",
        "昨晚",
        "发言",
        "站边",
        "预言家",
        "女巫",
        "狼人",
        "票型",
        "逻辑",
        "身份",
        "需要",
        "解释",
        "归票",
        "警徽",
        "金水",
        "查杀",
        "轮次",
        "不合理",
        "值得",
        "注意",
        "先听",
        "后面",
        "位置",
        "投票",
        "如果",
        "那么",
        "因此",
        "我会",
        "跟票",
        "观察",
    ]
)


def chatter(words: int = 60, invalid: float = 0.0, seed: int = 0, beside: str | None = None) -> Script:
    """``words``: of a speech, and of the reasoning before each decision. ``invalid``: share of decisions in
    which the choice is none of the legal ones. An answer is a function of the request and ``seed``.
    """

    def script(body: Mapping[str, Any]) -> dict[str, Any]:
        chance = random.Random(f"{seed}:{json.dumps(body['messages'], ensure_ascii=False, sort_keys=True)}")
        if not body.get("tools"):
            return {"role": "assistant", "content": _talk(chance, words)}
        tool = body["tools"][-1]["function"]
        fields = tool["parameters"]["properties"]
        given: dict[str, Any] = {"reasoning": _talk(chance, words)}
        options = _options(body["messages"], fields)
        if options:
            given["choice"] = "？" if chance.random() < invalid else _pick(chance, options)
        else:
            given["speech"] = _talk(chance, words)
            given |= {"agree": True} if "agree" in fields else {}
        if "response" in fields:  # AgentScope 1.0's own field
            given["response"] = beside or ""
        return _call(tool["name"], given, len(body["messages"]), beside)

    return script


def _pick(chance: random.Random, options: Sequence[str]) -> str:
    """Any; but of yes and no mostly no, or every game would end in explosions."""
    return options[1] if len(options) == 2 and chance.random() < 0.85 else chance.choice(options)


def _talk(chance: random.Random, words: int) -> str:
    return "".join(chance.choices(WORDS, k=words)) + "。"


def _options(messages: Sequence[Mapping[str, Any]], fields: Mapping[str, Any]) -> list[str]:
    """The choices of the tool's enum, else those that the moderator named last."""
    if enum := fields.get("choice", {}).get("enum"):
        return list(enum)
    asked = [_text(message) for message in messages if message.get("name") == "moderator"]
    found = CHOICES.search(asked[-1]) if asked else None
    return found[1].split(" | ") if found else []


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())


def _call(name: str, given: dict[str, Any], number: int, beside: str | None) -> dict[str, Any]:
    arguments = json.dumps(given, ensure_ascii=False)
    call = {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": beside, "tool_calls": [call]}

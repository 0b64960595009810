"""What a pretrained model of 135 million parameters does with tools and structured output, 50 cases a row.

Run ``python bench/real_tools.py [POLICY]`` (default: ``smollm2``, fetched on first use); prints one JSON
object. Five tools, ten questions for each, all tools offered each time; greedy, at most 96 tokens. The engine
is asked over HTTP by the openai client. Rows: ``auto`` (the model may call), ``required``, ``named`` (the
right tool is named), ``one call`` (auto without parallel calls), ``json_schema`` (the same arguments asked
for as JSON), ``json_object`` and ``prompt only`` (JSON is asked for in words). Columns are shares of the 50:
``called`` a tool, the ``right_tool``, ``valid`` (the JSON is whole and follows the schema), ``right`` (the
values too), ``cut`` by length.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
from openai import AsyncOpenAI

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from agl_local.http.thread import EngineThread
from agl_local.policy.fetch import fetch
from agl_local.policy.folder import load_policy
from calc_x.calculator import calculate_text

Case = tuple[str, str, dict[str, Any]]
"""Tool, question, right arguments."""


def schema(**properties: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": list(properties),
        "additionalProperties": False,
    }


TOOLS = {
    "calculate": ("Calculate the value of an arithmetic expression.", schema(expression="string")),
    "get_weather": ("Get the weather of a city.", schema(city="string")),
    "set_timer": ("Start a timer.", schema(minutes="integer")),
    "send_message": ("Send a text message to a person.", schema(to="string", text="string")),
    "convert_currency": (
        "Convert an amount of money.",
        {**schema(amount="number"), "properties": {
            "amount": {"type": "number"}, "currency": {"enum": ["USD", "EUR", "JPY", "GBP"]}},
            "required": ["amount", "currency"]},
    ),
}  # fmt: skip
CITIES = ["Paris", "Nairobi", "Lima", "Oslo", "Kyoto", "Boston", "Cairo", "Delhi", "Rome", "Quito"]
NAMES = ["Anna", "Ben", "Chen", "Dora", "Emil", "Fatima", "Gus", "Hana", "Ivan", "Julia"]
NEWS = ["I am late", "dinner is ready", "the train is full", "call me back", "the door is open"]
MONEY = {"USD": "US dollars", "EUR": "euros", "JPY": "yen", "GBP": "pounds"}


def cases() -> list[Case]:
    made: list[Case] = []
    for i in range(10):
        a, b = 12 + 7 * i, 3 + i
        sign = "+-*"[i % 3]
        made.append(("calculate", f"What is {a} {sign} {b}?", {"expression": f"{a} {sign} {b}"}))
        made.append(("get_weather", f"How is the weather in {CITIES[i]}?", {"city": CITIES[i]}))
        made.append(("set_timer", f"Set a timer for {5 + 3 * i} minutes.", {"minutes": 5 + 3 * i}))
        text = NEWS[i % 5]
        made.append(("send_message", f"Tell {NAMES[i]} that {text}.", {"to": NAMES[i], "text": text}))
        unit = list(MONEY)[i % 4]
        amount = 10 + 15 * i
        made.append(
            ("convert_currency", f"How much is {amount} {MONEY[unit]}?", {"amount": amount, "currency": unit})
        )
    return made


def offered() -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}
        for name, (about, parameters) in TOOLS.items()
    ]


def request(mode: str, case: Case) -> dict[str, Any]:
    tool, question, _ = case
    about, parameters = TOOLS[tool]
    form = {"type": "json_schema", "json_schema": {"name": tool, "schema": parameters}}
    words = f"{about} Answer with the arguments as a JSON object with {', '.join(parameters['properties'])}."
    asked: dict[str, dict[str, Any]] = {
        "auto": {"tools": offered()},
        "one call": {"tools": offered(), "parallel_tool_calls": False},
        "required": {"tools": offered(), "tool_choice": "required", "parallel_tool_calls": False},
        "named": {"tools": offered(), "tool_choice": {"type": "function", "function": {"name": tool}}},
        "json_schema": {"response_format": form},
        "json_object": {"response_format": {"type": "json_object"}},
        "prompt only": {},
    }
    system = "Call a function to answer." if "tools" in asked[mode] else words
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return {"messages": messages, "temperature": 0, "max_tokens": 96, **asked[mode]}


def right(case: Case, arguments: dict[str, Any]) -> bool:
    tool, _, wanted = case
    if tool == "calculate":
        return calculate_text(arguments["expression"]) == calculate_text(wanted["expression"])
    return all(
        str(arguments[name]).strip(". ").lower() == str(value).lower() for name, value in wanted.items()
    )


def judge(case: Case, choice: Any) -> Counter[str]:
    """Which columns the answer counts in."""
    found = Counter({"cut": int(choice.finish_reason == "length")})
    calls = choice.message.tool_calls or []
    text = choice.message.content or ""
    if calls:
        found["called"] = 1
        found["right_tool"] = int(calls[0].function.name == case[0])
        text = calls[0].function.arguments
    try:
        arguments = json.loads(text)
        jsonschema.validate(arguments, TOOLS[calls[0].function.name if calls else case[0]][1])
    except (ValueError, KeyError, jsonschema.ValidationError):
        return found
    found["valid"] = 1
    if not calls or found["right_tool"]:
        found["right"] = int(right(case, arguments))
    return found


async def measure(address: str) -> dict[str, Any]:
    client = AsyncOpenAI(base_url=f"{address}/v1", api_key="none", timeout=600)
    rows: dict[str, Any] = {}
    every = cases()
    for mode in ("auto", "one call", "required", "named", "json_schema", "json_object", "prompt only"):
        began = time.perf_counter()
        answers = await asyncio.gather(
            *(client.chat.completions.create(model="policy", **request(mode, case)) for case in every)
        )
        total: Counter[str] = Counter()
        for case, answer in zip(every, answers, strict=True):
            total += judge(case, answer.choices[0])
        columns = ("called", "right_tool", "valid", "right", "cut")
        tokens = sum(answer.usage.completion_tokens for answer in answers)
        seconds = time.perf_counter() - began
        rows[mode] = {name: round(total[name] / len(every), 2) for name in columns}
        print(mode, rows[mode], f"{tokens} tokens, {seconds:.0f} s",
        repr(answers[0].choices[0].message.content),
              answers[0].choices[0].message.tool_calls, file=sys.stderr)  # fmt: skip
    return {"cases": len(every), "rows": rows}


def main() -> None:
    given = sys.argv[1] if len(sys.argv) > 1 else "smollm2"
    policy = load_policy(fetch(given).path)
    engine = EngineThread(policy, slots=50, max_len=768)
    try:
        print(json.dumps({"policy": Path(given).name, **asyncio.run(measure(engine.start()))}))
    finally:
        engine.close()


if __name__ == "__main__":
    main()

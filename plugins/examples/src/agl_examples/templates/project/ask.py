"""Ask the agent some tasks at a served model: python ask.py http://127.0.0.1:8347/v1"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request
from pathlib import Path

import agentlightning as agl
from agent import answer
from reward import score

LINES = Path(__file__).with_name("val.jsonl").read_text(encoding="utf-8").split("\n")
TASKS = [json.loads(line) for line in LINES if line]
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the server is here: no proxy between


def models(endpoint: str) -> list[str]:
    """The names that the server gives its models. A server that has just been started is waited for."""
    for left in reversed(range(1200)):
        try:
            with DIRECT.open(f"{endpoint}/models", timeout=10) as said:
                return [model["id"] for model in json.load(said)["data"]]
        except OSError as error:
            if not left:
                raise SystemExit(f"nothing answers at {endpoint}: {error}") from error
            time.sleep(0.5)
    return []


async def main(endpoint: str) -> None:
    """Ask three tasks."""
    model, *_ = models(endpoint)
    print(f"{endpoint} serves {model}", flush=True)
    for task in TASKS[:3]:
        said = await answer(task["question"], agl.LLM(endpoint=endpoint, model=model, api_key="none"))
        print(f"{task['question'].partition(chr(10))[0]}\n  {said}  reward {score(task, said):g}")


asyncio.run(main(sys.argv[1]))

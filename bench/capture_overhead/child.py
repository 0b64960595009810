"""Measures one framework in its own environment: ``child.py NAME ROUNDS SECONDS``; the last line is JSON.

Four ways to run the same agent, interleaved in random order, one batch of each a round: *plain* (no
capture, an answer without ids), *off* (no capture, the answer with ids and logprobs that training asks
for), *wire* (core's wire layer), *on* (wire layer and adapter). What is added is the difference of two ways
within a round, in microseconds of this process's CPU time (all threads, user and system) per model call. A
batch in which a call was not captured, or an agent not named, ends the measurement with an error.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any

from canned import PROMPT, RESPONSE, Canned
from frameworks import CASES, KEY, NAME, URL, Case, Run

from agentlightning import capture, semconv
from agentlightning.capture.context import AttemptContext, attempt_context
from agentlightning.capture.installation import Patch
from agentlightning.capture.sdk import OPENAI, call_methods
from agentlightning.types import Span

WAYS = ("plain", "off", "wire", "on")
SIZES = {"": (300, 20), "_32k": (PROMPT, RESPONSE)}


class Switch:
    """Capture as a way wants it."""

    def __init__(self, instrumentor: str | None) -> None:
        self._adapter: Any = None
        if instrumentor is not None:
            module, _, name = instrumentor.partition(":")
            self._adapter = getattr(import_module(f"{module}.instrumentor"), name)()
        self._wire: list[Patch] = []

    def on(self, way: str) -> None:
        """Begin."""
        if way == "wire":
            self._wire = [Patch(*method) for method in call_methods("openai", OPENAI)]
        elif way == "on" and self._adapter is None:
            capture.install()
        elif way == "on":
            self._adapter.instrument(raise_exception_on_conflict=True)

    def off(self, way: str) -> None:
        """Leave nothing."""
        if way == "wire":
            for patch in self._wire:
                patch.undo()
        elif way == "on" and self._adapter is None:
            capture.uninstall()
        elif way == "on":
            self._adapter.uninstrument()


class Bench:
    """One framework's agent and one size of call."""

    def __init__(self, case: Case, run: Run, canned: Canned, task: str) -> None:
        self.case, self.run, self.canned, self.task = case, run, canned, task
        self.switch = Switch(case.instrumentor)
        self.spans: list[Span] = []
        self.attempts = 0

    async def batch(self, way: str, runs: int) -> float:
        """Microseconds of CPU a model call."""
        self.spans.clear()
        self.canned.calls, self.canned.ids = 0, way != "plain"
        self.switch.on(way)
        gc.collect()
        begun = time.process_time()
        for _ in range(runs):
            if way in ("plain", "off"):
                await self.run(self.task)
            else:
                with attempt_context(self._attempt()):
                    await self.run(self.task)
        spent = time.process_time() - begun
        self.switch.off(way)
        self._check(way, runs)
        return spent / self.canned.calls * 1e6

    def _attempt(self) -> AttemptContext:
        self.attempts += 1
        name = f"at-{self.attempts}"
        return AttemptContext(
            rollout_id=f"ro-{name}", attempt_id=name, sink=self.spans.append, key=KEY, gateway=URL
        )

    def _check(self, way: str, runs: int) -> None:
        calls = [span for span in self.spans if span.name == semconv.CALL_SPAN]
        captured = [span for span in calls if semconv.TOKENS_DIGEST in span.attributes]
        named = [span for span in calls if span.attributes.get(semconv.AGENT_NAME) == NAME]
        want = self.canned.calls if way in ("wire", "on") else 0
        if self.canned.calls != 2 * runs or len(captured) != want:
            raise SystemExit(f"{way}: {self.canned.calls} calls in {runs} runs, {len(captured)} captured")
        if way == "on" and self.case.instrumentor and len(named) != want:
            raise SystemExit(f"{way}: {len(named)} of {want} calls know their agent")


async def rounds(bench: Bench, count: int, seconds: float) -> dict[str, list[float]]:
    """Microseconds a call of each way, one figure a round."""
    for way in WAYS:
        await bench.batch(way, 3)  # imports, caches, lazily built schemas
    gc.collect()
    gc.freeze()  # what is there stays: a collection in a batch is about what the batch made
    once = await bench.batch("off", 5) * 2 / 1e6
    runs = max(2, round(seconds / once))
    order = random.Random(0)
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(count):
        for way in order.sample(WAYS, len(WAYS)):
            found[way].append(await bench.batch(way, runs))
    return found


def figures(found: dict[str, list[float]], size: str) -> dict[str, Any]:
    """Medians, and the middle half of the rounds, of what each layer adds."""
    out: dict[str, Any] = {f"call_us{size}": round(statistics.median(found["off"]))}
    for name, more, less in (("ids", "off", "plain"), ("wire", "wire", "off"), ("adapter", "on", "wire")):
        added = [a - b for a, b in zip(found[more], found[less], strict=True)]
        low, middle, high = statistics.quantiles(added, n=4)
        out[f"{name}_us{size}"] = round(middle)
        out[f"{name}_us{size}_middle_half"] = [round(low), round(high)]
    return out


async def measure(name: str, count: int, seconds: float) -> dict[str, Any]:
    """The figures of one framework."""
    case = CASES[name]
    out: dict[str, Any] = {"version": version(case.distribution), "openai": version("openai")}
    for size, (prompt, response) in SIZES.items():
        canned = Canned(prompt, response)
        canned.install()
        make: Callable[[], Run] = case.make
        bench = Bench(case, make(), canned, "word " * (prompt * 4 // 5))
        out |= figures(await rounds(bench, count, seconds), size)
    return out


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print(json.dumps(asyncio.run(measure(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))))

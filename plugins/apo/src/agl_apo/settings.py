"""Settings that all searches share, and the endpoints of critic and editor."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agl_gateway.budget.limits import Budget

from agentlightning.algorithms.context import Context
from agentlightning.algorithms.rollouts.batching import stable_seed
from agentlightning.child_environment import engine_key
from agentlightning.types import LLM, PromptTemplate, UsageError
from agl_apo.scoring import Task, tasks_of

Endpoint = LLM | str
"""An OpenAI-compatible endpoint, or the name of one of the run's policies."""


def read_endpoint(given: Any, name: str) -> Endpoint | None:
    """Return an endpoint: an ``LLM``, a policy's name, an OpenAI client's address, or a mapping
    ``{endpoint, model, api_key_env, sampling}``.
    """
    if given is None or isinstance(given, LLM | str):
        return given
    if not isinstance(given, Mapping):
        raise UsageError(
            f"{name}: give agl.LLM(endpoint=…, model=…), a mapping with endpoint and model, or the name of a "
            "policy"
        )
    unknown = sorted(set(given) - {"endpoint", "model", "api_key_env", "sampling"})
    if unknown or not isinstance(given.get("endpoint"), str) or not isinstance(given.get("model"), str):
        what = f"unknown key {unknown[0]!r}" if unknown else "endpoint and model are needed"
        raise UsageError(f"{name}: {what}; it takes endpoint, model, api_key_env and sampling")
    key = None
    if (variable := given.get("api_key_env")) is not None:
        key = engine_key(str(variable))
        if not key:
            raise UsageError(f"{name}.api_key_env: the environment variable {variable} is not set")
    return LLM(
        endpoint=given["endpoint"],
        model=given["model"],
        api_key=key,
        sampling_parameters=dict(given.get("sampling") or {}),
    )


def of_client(client: Any, model: str, name: str) -> LLM:
    """Return the endpoint of an OpenAI client, as ``agl.APO(client)`` of v0.3 takes one."""
    address, key = getattr(client, "base_url", None), getattr(client, "api_key", None)
    if address is None:
        raise UsageError(f"{name}: {client!r} is no OpenAI client: it has no base_url")
    return LLM(endpoint=str(address).rstrip("/"), model=model, api_key=key if isinstance(key, str) else None)


def read_budget(given: Budget | Mapping[str, Any] | None) -> Budget:
    """Return the budget: a :class:`Budget`, or a mapping ``{calls, tokens, money}``."""
    if isinstance(given, Budget):
        return given
    try:
        budget = Budget(**(given or {}))
    except TypeError:
        raise UsageError(f"budget: give calls, tokens or money, not {given!r}") from None
    if budget.seconds is not None:
        raise UsageError(
            "budget.seconds: a search has limits of calls, tokens and money; the run has one of time"
        )
    return budget


def read_prompts(given: Mapping[str, Any] | None) -> dict[str, PromptTemplate]:
    """Return the first prompts: name → template, its text, or a mapping ``{template, engine}``."""
    found: dict[str, PromptTemplate] = {}
    for name, prompt in (given or {}).items():
        if isinstance(prompt, str):
            prompt = PromptTemplate(template=prompt)
        elif isinstance(prompt, Mapping):
            try:
                prompt = PromptTemplate(**prompt)
            except TypeError as error:
                raise UsageError(f"prompts.{name}: give a text, or template and engine: {error}") from None
        if not isinstance(prompt, PromptTemplate) or not prompt.template.strip():
            raise UsageError(f"prompts.{name}: give a text or an agl.PromptTemplate")
        found[name] = prompt
    return found


async def first_prompts(context: Context, given: Mapping[str, PromptTemplate]) -> dict[str, PromptTemplate]:
    """Return the prompts that the search begins with: those given, else those of ``initial_resources``."""
    found = dict(given)
    for name, resource in context.initial_resources.items():
        if isinstance(resource, str):
            resource = PromptTemplate(template=resource)
        if isinstance(resource, PromptTemplate) and name not in found and not given:
            found[name] = resource
    if not found:
        raise UsageError(
            "there is no prompt to search: give prompts={'prompt_template': 'text with {placeholders}'} "
            "(training.settings.prompts in a file), or Trainer(initial_resources=…) with agl.PromptTemplate"
        )
    return found


@dataclass(frozen=True, slots=True)
class Split:
    """The tasks of a search. No candidate is chosen by a held-out task."""

    train: list[Task]
    held_out: list[Task]


def split(context: Context, share: float) -> Split:
    """Return the run's training and held-out tasks. Without held-out tasks, a ``share`` of the training
    tasks, drawn by the seed, is held out.
    """
    if not context.train:
        raise UsageError("a prompt search needs training tasks: give train_dataset (environment.train)")
    train = tasks_of("train", context.train)
    if context.val:
        return Split(train, tasks_of("val", context.val))
    mixed = shuffled(train, context.seed, "held-out")
    n = min(len(mixed) - 1, max(1, round(share * len(mixed))))
    if n < 1:
        raise UsageError("a prompt search needs two tasks at least, one of them held out")
    return Split(sorted(mixed[n:], key=_place), sorted(mixed[:n], key=_place))


def _place(task: Task) -> int:
    return task.index


def shuffled(tasks: Sequence[Task], seed: int, *key: object) -> list[Task]:
    """Return the tasks in an order that is a function of ``seed`` and ``key``."""
    found = list(tasks)
    random.Random(stable_seed(seed, "prompts", *key)).shuffle(found)
    return found


def at_least(name: str, value: Any, least: int) -> int:
    """Return ``value`` if it is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name}: give a whole number from {least} on, not {value!r}")
    return value

"""What a policy folder holds, and whether an agent can use it and a run can train it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from agentlightning.types import UsageError
from agl_local.fresh.roundtrip import RULES, TALK, Examination, examine
from agl_local.network.model import CausalLM
from agl_local.policy.folder import Policy, fingerprint, state
from agl_local.policy.weights import not_finite
from agl_local.serving import load
from agl_local.sft.chats import Chat, encode
from agl_local.text.rendering import TemplateError
from agl_local.text.tokenizer import ChatTokenizer

_TEXT = 'Ünïcode, 漢字, \t tabs and 1234567890\n\n{"json": [1.5e-3]} 🙂'


def info(folder: Path) -> dict[str, Any]:
    """Return the facts of a policy folder: network, tokenizer, template, size, digest."""
    policy = load(folder, "cpu", "float32")
    template = policy.tokenizer.template
    own = isinstance(policy.model, CausalLM)
    return {
        "folder": str(folder.resolve()),
        "family": getattr(policy.config, "arch", type(policy.model).__name__),
        "forward": "own" if own else "transformers",
        "parameters": sum(parameter.numel() for parameter in policy.model.parameters()),
        "layers": getattr(policy.config, "num_layers", None),
        "hidden": getattr(policy.config, "hidden_size", None),
        "context": getattr(policy.config, "max_positions", None),
        "vocabulary": policy.tokenizer.vocab_size,
        "ends_with": [policy.tokenizer.decode([token]) for token in policy.tokenizer.eos_ids],
        "template": template is not None,
        "tools": template is not None and policy.tokenizer.form.syntax is not None,
        "calls": policy.tokenizer.form.syntax.kind if policy.tokenizer.form.syntax else None,
        "bytes": sum(file.stat().st_size for file in folder.iterdir() if file.is_file()),
        "parameters_sha256": fingerprint(policy.model),
    }


def check(folder: Path, chats: Sequence[Chat] = ()) -> dict[str, Any]:
    """Return the checks of a policy by name, each ``None`` or what is wrong, warnings, the round trips
    (``roundtrip.examine``), and what it knows of ``chats``: the mean loss of a trained token (nats), and the
    share of messages that it would say word for word (each token the most likely one, given those before).
    A folder that cannot be loaded has no check but that one.
    """
    try:
        policy = load(folder, "cpu", "float32")
    except UsageError as error:
        return {"ok": False, "checks": {"loads": str(error)}, "warnings": [], "round_trips": {}}
    checks: dict[str, str | None] = {"loads": None}
    for name, one in (("finite", _finite), ("text", _text), ("ends", _ends), ("history", _history)):
        checks[name] = _failed(one, policy)
    found: dict[str, Any] = {"checks": checks}
    try:
        examined = examine(policy.tokenizer)
        checks["tools"] = examined.failed or next(
            (f"{name}: {wrong}" for name, wrong in examined.round_trips.items() if wrong), None
        )
        found |= {"warnings": _warnings(policy.tokenizer, examined), "round_trips": examined.round_trips}
    except TemplateError as error:
        checks["tools"] = str(error)
        found |= {"warnings": [], "round_trips": {}}
    if chats:
        found |= _known(policy, chats)
    return {"ok": not any(checks.values()), **found}


def _warnings(tokenizer: ChatTokenizer, examined: Examination) -> list[str]:
    """What an agent or a run should know though the policy can be used."""
    found = [*examined.warnings, *(f"{name}: {why}" for name, why in examined.refused.items())]
    if examined.prefix:
        found.append(f"prefix: {examined.prefix}")
    for name, talk in RULES.items():
        try:
            tokenizer.apply(talk)
        except TemplateError as error:
            found.append(f"{name}: {error}")
    return found


def _failed(one: Callable[[Policy], str | None], policy: Policy) -> str | None:
    try:
        return one(policy)
    except ValueError as error:
        return str(error)


def _finite(policy: Policy) -> str | None:
    """Weights that a network can compute with."""
    return not_finite(state(policy.model))


def _text(policy: Policy) -> str | None:
    back = policy.tokenizer.decode(policy.tokenizer.encode(_TEXT))
    return None if back == _TEXT else f"a text comes back from its tokens changed: {back!r}"


def _ends(policy: Policy) -> str | None:
    """An answer must end: the template closes it by an end token."""
    tokenizer = policy.tokenizer
    if not tokenizer.eos_ids:
        return "no end token: answers would never end"
    after = tokenizer.render(TALK[:2], add_generation_prompt=False).partition(str(TALK[1]["content"]))[2]
    if any(token in tokenizer.eos_ids for token in tokenizer.encode(after)) or not after.strip():
        return None
    ends = [tokenizer.decode([token]) for token in tokenizer.eos_ids]
    return (
        f"the template closes an answer by {after[:40]!r}, which has none of the end tokens {ends}: answers "
        "would run on; name its token in eos_token_id of generation_config.json"
    )


def _history(policy: Policy) -> str | None:
    """What was said before must be in the prompt."""
    shown = policy.tokenizer.render(TALK)
    lost = [message["content"] for message in TALK if message["content"] not in shown]
    return f"the template leaves out what was said earlier: {lost[0]!r}" if lost else None


def _known(policy: Policy, chats: Sequence[Chat]) -> dict[str, Any]:
    length = getattr(policy.config, "max_positions", None) or 2048
    encoded = encode(policy.tokenizer, chats, length)
    loss, tokens, messages, right = 0.0, 0, 0, 0
    with torch.no_grad():
        for sample in encoded.samples:
            ids = torch.tensor(sample.ids)
            logprobs = torch.log_softmax(policy.model.logits(policy.model.hidden(ids[None]))[0], dim=-1)
            for places in _messages(sample.trained):
                at = torch.tensor(places)
                loss -= logprobs[at - 1, ids[at]].sum().item()
                right += bool((logprobs[at - 1].argmax(-1) == ids[at]).all())
                tokens, messages = tokens + len(places), messages + 1
    return {
        "chats": encoded.chats,
        "too_long": len(encoded.too_long),
        "loss": loss / tokens,
        "messages": messages,
        "word_for_word": right / messages,
    }


def _messages(trained: Sequence[int]) -> list[list[int]]:
    """Split the trained positions of a sequence into runs, one of each message."""
    runs: list[list[int]] = []
    for place in trained:
        if runs and runs[-1][-1] == place - 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs

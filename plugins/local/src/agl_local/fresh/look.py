"""What a policy folder holds, and whether an agent can use it and a run can train it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from agl_local.network.model import CausalLM
from agl_local.policy.folder import Policy, fingerprint, load_policy
from agl_local.sft.chats import Chat, encode

_CALL = {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
_TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "How many are 12 and 30?"},
    {"role": "assistant", "content": "42"},
    {"role": "user", "content": "And twice that?"},
]
_TOOLS_TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "How many are 12 and 30?"},
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "call_0", "content": "42"},
]
_TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}}}}}]  # fmt: skip
_TEXT = 'Ünïcode, 漢字, \t tabs and 1234567890\n\n{"json": [1.5e-3]} 🙂'


def info(folder: Path) -> dict[str, Any]:
    """Return the facts of a policy folder: network, tokenizer, template, size, digest."""
    policy = load_policy(folder)
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
        "tools": template is not None and _renders_tools(policy),
        "bytes": sum(file.stat().st_size for file in folder.iterdir() if file.is_file()),
        "parameters_sha256": fingerprint(policy.model),
    }


def _renders_tools(policy: Policy) -> bool:
    return "add" in policy.tokenizer.render(_TALK[:1], _TOOLS)


def check(folder: Path, chats: Sequence[Chat] = ()) -> dict[str, Any]:
    """Return the checks of a policy by name, each ``None`` or what is wrong, and what it knows of ``chats``:
    the mean loss of a trained token (nats), and the share of messages that it would say word for word (each
    token the most likely one, given those before). Raise for a folder that cannot be loaded.
    """
    policy = load_policy(folder)
    checks: dict[str, str | None] = {"loads": None}
    for name, one in (("text", _text), ("ends", _ends), ("history", _history), ("tools", _tools)):
        checks[name] = _failed(one, policy)
    found: dict[str, Any] = {"checks": checks}
    if chats:
        found |= _known(policy, chats)
    return {"ok": not any(checks.values()), **found}


def _failed(one: Callable[[Policy], str | None], policy: Policy) -> str | None:
    try:
        return one(policy)
    except ValueError as error:
        return str(error)


def _text(policy: Policy) -> str | None:
    back = policy.tokenizer.decode(policy.tokenizer.encode(_TEXT))
    return None if back == _TEXT else f"a text comes back from its tokens changed: {back!r}"


def _ends(policy: Policy) -> str | None:
    return None if policy.tokenizer.eos_ids else "no end token: answers would never end"


def _history(policy: Policy) -> str | None:
    """A later prompt must extend the earlier one and its answer, so that turns become one row."""
    return _extends(policy, _TALK, None)


def _tools(policy: Policy) -> str | None:
    if not _renders_tools(policy):
        return "the template does not render tools: agents with tools cannot use this policy"
    return _extends(policy, _TOOLS_TALK, _TOOLS)


def _extends(policy: Policy, messages: list[dict[str, Any]], tools: Any) -> str | None:
    first = policy.tokenizer.render(messages[:1], tools)
    answered = policy.tokenizer.render(messages[:2], tools, add_generation_prompt=False)
    later = policy.tokenizer.render(messages, tools)
    if not answered.startswith(first) or not later.startswith(answered):
        return "the template rewrites earlier turns: later calls do not extend earlier ones, rows stay apart"
    return None


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

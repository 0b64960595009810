"""Hints: what the teacher is told and the policy was not, and where it stands in the teacher's prompt.

The text is appended, after an empty line, to the last message of the user in the request of each call, and
the prompt is rendered again by the policy's own chat template. Without a message of the user it becomes one,
after all others. The response's ids stay exactly those that the policy sampled. A call whose own prompt the
template does not give again, id for id, is left out: it is unknown where a hint would stand in it.

Invariant: a hint is in the teacher's rows and in the record of the run, and never in a row that is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from agentlightning.log_limit import limited
from agentlightning.types import Call, Record, Row, Segment
from agentlightning.types.arrays import Flags, Floats, Ints
from agentlightning.types.tokens import TokenIds

log = limited(__name__)
NO_HINT, HINT_ERROR, NOT_RENDERED = "distill-no-hint", "distill-hint-error", "distill-not-rendered"
Hint = Callable[[Any, Record, Sequence[Record]], str | None]
"""``(task, rollout, group) -> text``: the task, the record of its rollout, and those of its whole group."""


class Renders(Protocol):
    """A tokenizer with a chat template."""

    def apply(
        self, messages: Sequence[Mapping[str, Any]], tools: Any = None, **variables: Any
    ) -> list[int]: ...


def hint_of(function: Hint, record: Record, group: Sequence[Record]) -> tuple[str, str]:
    """Return the hint of a rollout, and why it has none; one of both is empty."""
    try:
        text: Any = function(record.rollout.input, record, group)
    except Exception as error:
        log.warning(
            "distill.hint raised for rollout %s: %s: %s",
            record.rollout.rollout_id,
            type(error).__name__,
            error,
            exc_info=True,
        )
        return "", HINT_ERROR
    if text is not None and not isinstance(text, str):
        log.warning("distill.hint gave a %s for rollout %s", type(text).__name__, record.rollout.rollout_id)
        return "", HINT_ERROR
    return (text, "") if text else ("", NO_HINT)


def with_hint(messages: Sequence[Mapping[str, Any]], hint: str) -> list[dict[str, Any]]:
    """Return messages with the hint in the last one of the user."""
    made = [dict(message) for message in messages]
    at = max((i for i, message in enumerate(made) if message.get("role") == "user"), default=None)
    if at is None:
        return [*made, {"role": "user", "content": hint}]
    content = made[at].get("content")
    if isinstance(content, list):
        made[at]["content"] = [*content, {"type": "text", "text": f"\n\n{hint}"}]
    else:
        made[at]["content"] = f"{content or ''}\n\n{hint}"
    return made


def hinted_row(row: Row, call: Call, hint: str, tokenizer: Renders) -> Row | str:
    """Return the row by which a teacher scores one call of ``row``, or why there is none."""
    request = call.request or {}
    messages, tools = request.get("messages"), request.get("tools")
    if not isinstance(messages, list) or not all(isinstance(one, Mapping) for one in messages):
        return NOT_RENDERED
    if call.prompt_ids is None or call.response_ids is None:
        return NOT_RENDERED
    variables = request.get("chat_template_kwargs") or {}
    own = list(call.prompt_ids)
    try:
        for offered in (tools, None) if tools else (None,):
            if tokenizer.apply(messages, offered, **variables) == own:
                prompt = tokenizer.apply(with_hint(messages, hint), offered, **variables)
                return _row(row, call, prompt)
    except (ValueError, TypeError) as error:
        log.warning("call %s: its prompt cannot be rendered with a hint: %s", call.call_id, error)
    return NOT_RENDERED


def _row(row: Row, call: Call, prompt: list[int]) -> Row:
    """The teacher's row: its own prompt, and the response as it was sampled."""
    assert call.prompt_ids is not None and call.response_ids is not None
    response, start = list(call.response_ids), len(call.prompt_ids)
    n, m = len(prompt), len(response)
    return Row(
        row_id=f"{row.row_id}/{call.call_id}",
        rollout_id=row.rollout_id,
        policy=row.policy,
        token_ids=TokenIds([*prompt, *response]),
        mask=Flags([0] * n + [1] * m),
        advantages=Floats(bytes(8 * (n + m))),
        logprobs=Floats([0.0] * n + list(row.logprobs[start : start + m])),
        weights=Floats(bytes(8 * (n + m))),
        versions=Ints([-1] * (n + m)),
        segments=[Segment(call.call_id, n, n + m, 0.0)],
        temperature=row.temperature,
        allowed={n: row.allowed[start]} if start in row.allowed else {},
        grammars={n: row.grammars[start]} if start in row.grammars else {},
    )

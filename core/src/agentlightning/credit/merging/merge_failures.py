"""Find out why a call whose messages continue an earlier call does not continue its token ids.

Such a call repeats its context at full cost, so the reason has a name:

==================  ================================================================================
``think-stripped``  the earlier answer's reasoning is gone from the later prompt
``template``        the text before the answer is rendered differently (date, tools, …)
``retokenised``     same message, different ids: text tokenised again, or a tool call re-rendered
``edited``          the agent changed the answer before sending it back
``truncated``       earlier messages were dropped (memory window, over-length policy)
``temperature``     the ids do continue it, but the calls have different temperatures
==================  ================================================================================

(``branch`` is found by the forest itself.) The classification uses messages and ids only, no tokenizer: it
is the likeliest reason, not a proof.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from agentlightning.credit.merging import messages as chat
from agentlightning.credit.merging.common_prefix import common_prefix
from agentlightning.credit.merging.messages import Message
from agentlightning.types import Call
from agentlightning.types.tokens import pack

OPENING_TOKENS = 4
"""Tokens around the start of an answer that belong to its opening (``<think>\\n`` given by the template)."""


class Continuations:
    """Finds the earlier call that a request continues by its messages. Calls are added in order.

    Work per call is linear in its messages: heads are compared by a running hash.
    """

    def __init__(self) -> None:
        self._by_messages: dict[int, list[tuple[Call, list[Message]]]] = {}
        self._by_reply: dict[Message, tuple[Call, list[Message]]] = {}
        self._known: dict[int, Message] = {}

    def add(self, call: Call) -> None:
        """Make a call findable."""
        sent = chat.messages(call, self._known)
        if not sent:
            return
        self._by_messages.setdefault(_prefix_hashes(sent)[-1], []).append((call, sent))
        if answer := chat.reply(call):
            self._by_reply[chat.without_reasoning(answer)] = (call, sent)

    def find(self, call: Call) -> tuple[Call, bool] | None:
        """The earlier call, and whether messages were dropped since; ``None`` without one."""
        sent = chat.messages(call, self._known)
        heads = _prefix_hashes(sent)
        for n in range(len(sent) - 1, 0, -1):
            if sent[n].role == "assistant":
                same = self._by_messages.get(heads[n - 1], ())
                candidates = [c for c, m in same if m == sent[:n] and _is_earlier(c, call)]
                if candidates:
                    return max(candidates, key=lambda c: _similarity(c, sent[n])), False
        return self._truncated(call, sent)

    def _truncated(self, call: Call, sent: list[Message]) -> tuple[Call, bool] | None:
        """The call whose answer is quoted last here, if earlier messages were dropped."""
        at = next((i for i in range(len(sent) - 1, -1, -1) if sent[i].role == "assistant"), None)
        if at is None:
            return None
        earlier, before = self._by_reply.get(chat.without_reasoning(sent[at]), (None, []))
        if earlier is None or not _is_earlier(earlier, call) or at >= len(before):
            return None
        return (earlier, True) if _subsequence(sent[:at], before) else None


def classify(earlier: Call, later: Call, dropped: bool) -> str:
    """Why ``later`` does not extend ``earlier``, which it continues by its messages."""
    prompt: Sequence[int] = earlier.prompt_ids or ()
    answer: Sequence[int] = earlier.response_ids or ()
    shared = common_prefix(pack(prompt) + pack(answer), pack(later.prompt_ids or ()))
    if dropped or "dropped" in later.edited:
        return "truncated"
    if shared == len(prompt) + len(answer) < len(later.prompt_ids or []):
        return "temperature"
    quoted = chat.messages(later)[len(chat.messages(earlier))]
    opening = len(prompt) - OPENING_TOKENS <= shared <= len(prompt) + OPENING_TOKENS
    gone = shared >= len(prompt) and chat.THINK_END not in quoted.text
    if chat.has_reasoning(earlier) and (opening or gone):
        return "think-stripped"
    if shared < len(prompt):
        return "template"
    sent = chat.reply(earlier)
    if sent is not None and chat.without_reasoning(sent) != chat.without_reasoning(quoted):
        return "edited"
    return "template" if shared == len(prompt) + len(answer) else "retokenised"


def merge_failures(calls: Sequence[Call], extends: Callable[[Call, Call], bool]) -> dict[str, str]:
    """Call id → reason, for each of ``calls`` (in order) that continues one it does not extend.

    ``extends(later, earlier)``: whether ``earlier`` is an ancestor of ``later`` in the forest.
    """
    found: dict[str, str] = {}
    seen = Continuations()
    for call in calls:
        match = seen.find(call)
        if match is not None and not extends(call, match[0]):
            found[call.call_id] = classify(match[0], call, match[1])
        seen.add(call)
    return found


def _prefix_hashes(sent: Iterable[Message]) -> list[int]:
    """Hash of the first 1, 2, … messages. Equality is confirmed on the messages themselves."""
    heads: list[int] = []
    head = 0
    for message in sent:
        head = hash((head, message))
        heads.append(head)
    return heads


def _is_earlier(earlier: Call, later: Call) -> bool:
    return earlier.sequence < later.sequence


def _similarity(call: Call, quoted: Message) -> tuple[int, int]:
    """How well a call's answer matches the quoted message; later calls win ties."""
    answer = chat.reply(call)
    if answer is None:
        return 0, call.sequence
    if answer == quoted:
        return 2, call.sequence
    return int(chat.without_reasoning(answer) == chat.without_reasoning(quoted)), call.sequence


def _subsequence(short: Sequence[Message], long: Sequence[Message]) -> bool:
    rest = iter(long)
    return all(message in rest for message in short)

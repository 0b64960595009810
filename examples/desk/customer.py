"""The customer: a second agent in the rollout, by a script, or by a policy of the run called ``customer``.

What a script says is kept as an object of the agent ``customer``; a policy's calls are recorded as any, and
trained only if the run trains that policy (docs/policies.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openai import AsyncOpenAI

import agentlightning as agl

NAME = "customer"
BYE = "BYE"
"""What a policy says to leave."""
WISH = {
    "cancel": "I want to cancel my order {order}.",
    "refund": "I want my money back for order {order}.",
    "locker": "Please send my order {order} to locker {locker}.",
}
PROMPT = """You are {name}, a customer of a shop, and talk to its service desk. {wish}
Your email address is {email}. Say one sentence at a time. Give the email address when you are asked for it.
Say BYE when the desk has done what you want, or has refused it."""


def scripted(customer: Mapping[str, Any], heard: Sequence[str]) -> str | None:
    """Return what a customer says after the desk's replies so far: the wish, and the email address once it is
    asked. ``None``: the customer leaves.
    """
    if not heard:
        return f"Hello. {WISH[customer['wish']].format(**customer)}"
    if "?" not in heard[-1] or any("?" in one for one in heard[:-1]):
        return None
    if "mail" in heard[-1].lower():
        return f"It is {customer['email']}."
    return f"{WISH[customer['wish']].format(**customer)} My email is {customer['email']}."


async def says(customer: Mapping[str, Any], heard: Sequence[str], llm: agl.LLM | None) -> str | None:
    """Ask the customer, ``llm``: by a policy."""
    with agl.tagged(agent=NAME):
        if llm is None:
            said = scripted(customer, heard)
            agl.emit_object({"from": NAME, "text": said})
            return said
        system = PROMPT.format(**{**customer, "wish": WISH[customer["wish"]].format(**customer)})
        messages: list[Any] = [{"role": "system", "content": system}]
        messages += [{"role": "user", "content": text} for text in heard or ["How can I help you?"]]
        async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key) as client:
            answer = await client.chat.completions.create(model=llm.model, messages=messages)
        said = answer.choices[0].message.content or ""
        return None if BYE in said else said

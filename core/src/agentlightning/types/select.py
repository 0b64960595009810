"""Select calls by names, patterns or predicates over their tags.

A selection chooses the calls that a run trains, that a decorated class trains, and that go to a policy. A
name or pattern matches the call's ``agent``, ``role`` or ``node``. Invariant: an unnamed call has the role
``unknown``, so that it can be selected too.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from agentlightning.types.base import Tags, UsageError

Predicate = Callable[[Tags], bool]
Select = str | Sequence[str] | Predicate | bool | None
"""All calls (``None``, ``True``), none (``False``), a name, several, ``"re:…"`` over the whole name, or a
predicate of the call's tags."""

NAME_TAGS = ("agent", "role", "node")
"""The tags that a name is matched with."""
UNKNOWN = "unknown"
"""The role of unnamed calls."""
FORMS = "give a name, a list of names, 're:<pattern>', or a function (tags) -> bool"


class BadSelect(UsageError, ValueError):
    """An invalid ``select``, or a predicate that fails on a call's tags."""


def selector(select: Select, what: str = "select") -> Predicate:
    """Turn ``select`` into a predicate of a call's tags. ``what``: its name in errors. Raises
    :class:`BadSelect`; so does the predicate when a user's function raises.
    """
    if select is None or isinstance(select, bool):
        return lambda tags: select is not False
    if callable(select):
        return _checked_predicate(select, what)
    if isinstance(select, str):
        return _name_matcher(select, what)
    if not isinstance(select, Sequence) or not all(isinstance(name, str) for name in select):
        raise BadSelect(f"{what} is {select!r} ({type(select).__name__}): {FORMS}")
    if not select:
        raise BadSelect(f"{what} is an empty list, which means nobody: {FORMS}")
    each = [_name_matcher(name, what) for name in select]
    return lambda tags: any(matches(tags) for matches in each)


def policy_for(policies: Mapping[str, str], tags: Tags) -> str | None:
    """Return the policy of a call: the first entry of ``{name or "re:pattern": policy}`` that matches."""
    return next((policy for name, policy in policies.items() if _name_matcher(name, "policies")(tags)), None)


def with_role(tags: Tags) -> Tags:
    """Copy ``tags``, with the role ``unknown`` where agent, role and node are missing."""
    said = {tag for tag in NAME_TAGS if tag in tags and not (tag == "role" and tags[tag] == UNKNOWN)}
    if not said:
        return {**tags, "role": UNKNOWN}
    if tags.get("role") != UNKNOWN:
        return tags
    role = {"role": tags["agent"]} if "agent" in said else {}
    return {**{tag: value for tag, value in tags.items() if tag != "role"}, **role}


def caller_name(tags: Tags) -> str:
    """Return the displayed name of a caller: its agent, else its node, else its role."""
    return tags.get("agent") or tags.get("node") or tags.get("role") or UNKNOWN


@lru_cache(maxsize=1024)
def _name_matcher(name: str, what: str) -> Predicate:
    """Make the predicate of a name or pattern."""
    if not name.startswith("re:"):
        if not name.strip():
            raise BadSelect(f"{what}: {name!r} is no name: {FORMS}")
        return lambda tags: name in (tags.get("agent"), tags.get("role"), tags.get("node"))
    try:
        pattern = re.compile(name[3:])
    except re.error as error:
        raise BadSelect(f"{what}: {name[3:]!r} is not a regular expression: {error}") from None
    if not pattern.pattern:
        raise BadSelect(f"{what}: 're:' has no pattern after it, and would match nobody")
    return lambda tags: any(tag in tags and pattern.fullmatch(tags[tag]) is not None for tag in NAME_TAGS)


def _checked_predicate(function: Predicate, what: str) -> Predicate:
    """Check a user's function as far as possible; call it with a copy of the tags."""
    called = getattr(function, "__qualname__", type(function).__name__)
    if inspect.iscoroutinefunction(function):
        raise BadSelect(f"{what}: {called}() is a coroutine function; a predicate must answer at once")
    try:
        inspect.signature(function).bind({})
    except TypeError as error:
        raise BadSelect(f"{what}: {called}() does not take one argument, a call's tags ({error})") from None
    except ValueError:  # written in C, without a signature to look at
        pass

    def chosen(tags: Tags) -> bool:
        try:
            return bool(function(dict(tags)))
        except Exception as error:
            raise BadSelect(
                f"{what}: {called}() raised {type(error).__name__}: {error} for the tags {tags}; not every "
                "call has every tag, so read them with tags.get(…)"
            ) from error

    return chosen

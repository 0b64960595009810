"""How a group is shown to a judge: what all begin with is said once, and equal rollouts are one candidate.

A judge reads a transcript as data. Invariant: the order in which candidates stand is drawn from their content
alone, so that it does not follow the samples and is the same in another life of the run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from agl_judge.group import Finished, Group, said


class Shown(NamedTuple):
    """The distinct candidates of a group."""

    prefix: str
    """What all of them begin with."""
    texts: tuple[str, ...]
    """What each goes on with, in the order in which they are shown."""
    of: tuple[int, ...]
    """Rollout → its candidate, in the order of the group."""

    def spread(self, values: Sequence[float | None]) -> list[float | None]:
        """Return the values of candidates as those of rollouts."""
        return [values[one] for one in self.of]


def show(group: Group) -> Shown:
    """Return the candidates of a group."""
    lines = [_lines(one) for one in group.rollouts]
    common = 0
    for heads in zip(*lines, strict=False):
        if any(head != heads[0] for head in heads[1:]):
            break
        common += 1
    rests = ["\n".join(one[common:]) for one in lines]
    distinct = sorted(set(rests), key=lambda text: hashlib.sha256(text.encode()).digest())
    place = {text: number for number, text in enumerate(distinct)}
    return Shown("\n".join(lines[0][:common]), tuple(distinct), tuple(place[one] for one in rests))


def _lines(one: Finished) -> list[str]:
    """Return the messages of a rollout, each as a line; threads after the first begin with a rule."""
    found: list[str] = []
    for number, thread in enumerate(one.threads):
        found += ["---"] * bool(number)
        found += map(said, thread)
    return found


def task_text(task: Any, fields: Sequence[str] | None) -> str:
    """Return what a judge sees of a task: the fields that are named, else nothing, since a task may hold its
    answer and the transcript has what the agent was told.
    """
    if not fields:
        return ""
    shown = {name: task.get(name) for name in fields} if isinstance(task, dict) else task
    return f"<task>\n{json.dumps(shown, ensure_ascii=False)}\n</task>\n\n"


def candidates(shown: Shown) -> str:
    """Return prefix and candidates as the text of a question."""
    prefix = f"<common>\n{shown.prefix}\n</common>\n\n" if shown.prefix else ""
    listed = (f'<candidate number="{n}">\n{text}\n</candidate>' for n, text in enumerate(shown.texts, 1))
    return prefix + "\n\n".join(listed)

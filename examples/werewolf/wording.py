"""What players read, in Chinese or English: the moderator's words are data (``prompts/*.yaml``).

Invariant: a label names one choice of its ask, and reads back to it; a text made from a rule says what the
engine does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from werewolf.engine import Ask, Choice, Event, Happening, Kind, Role, Rules, Side, Statement

PROMPTS = Path(__file__).resolve().parent / "prompts"


class Wording:
    """The words of one language."""

    def __init__(self, language: str, data: dict[str, Any]) -> None:
        self.language = language
        self.data = data

    def seat(self, n: int) -> str:
        """A seat's name; 0 is nobody."""
        return str(self.data["seat"]).format(n=n) if n else str(self.data["nobody"])

    def seats(self, of: Iterable[int]) -> str:
        """Several seats, or nobody."""
        return self._join([self.seat(n) for n in of])

    def role(self, role: str) -> str:
        return str(self.data["roles"][role])

    def choice(self, choice: Choice, kind: Kind) -> str:
        """The label of a choice, e.g. ``3号``."""
        if isinstance(choice, Statement):
            return self.statement(choice)
        if isinstance(choice, int):
            return self.seat(choice)
        own = self.data["kind_words"].get(kind.value, {})
        return str(own.get(choice) or self.data["words"][choice])

    def labels(self, ask: Ask) -> dict[str, Choice]:
        """Label → choice, of all choices of an ask, in their order."""
        return {self.choice(option, ask.kind): option for option in ask.options}

    def statement(self, statement: Statement) -> str:
        """A statement as a sentence."""
        return str(self.data["statements"][statement.claim]).format(seat=self.seat(statement.seat))

    def question(self, ask: Ask) -> str:
        """What the moderator asks."""
        return str(self.data["asks"][ask.kind.value]).format(victim=self.seat(ask.notes.get("victim", 0)))

    def field(self, name: str) -> str:
        """What a field of the decision is for."""
        return str(self.data["fields"][name]).format(nobody=self.data["nobody"])

    def system(self, rules: Rules) -> str:
        """The system prompt: the same for all seats of a preset, and made from its rules."""
        parts = self.data["system"]
        deck = Counter(rules.roles)
        names = self._join(f"{self.role(role)}×{n}" for role, n in deck.items())
        wolves = self._join(self.role(role) for role in deck if role.side is Side.WOLVES)
        lines = [parts["intro"].format(seats=rules.seats, deck=names, wolves=wolves)]
        lines.append(parts[f"victory_{rules.victory}"])
        powers = {"guard": "guard", "wolves": "wolf", "witch": "witch", "seer": "seer"}
        lines.append(parts["night"].format(order=self._join(self.role(powers[p]) for p in rules.night)))
        witch = parts["witch_self_yes" if rules.witch_saves_herself else "witch_self_no"]
        kill = parts["self_kill"] if rules.self_kill else ""
        lines += [parts[f"power_{p}"].format(self_kill=kill, witch_self=witch) for p in rules.night]
        if guns := [role for role in deck if role.gun]:
            lines.append(parts["gun"].format(guns=self._join(map(self.role, guns))))
        lines += [parts[name] for name in ("sheriff", "explosion") if getattr(rules, name)]
        tie = parts[f"tie_{rules.tie}"]
        abstain = parts["abstain"] if rules.abstain else ""
        lines.append(parts[f"day_{rules.speech}"].format(abstain=abstain, tie=tie))
        lines += [parts["last_words"]] if rules.last_words else []
        return "\n".join([*lines, parts["glossary"], parts["manner"]])

    def card(self, seat: int, role: Role, mates: Iterable[int], king: int) -> str:
        """What a seat is told of itself."""
        card = self.data["card"]
        lines = [card["head"].format(seat=self.seat(seat), role=self.role(role))]
        lines.append(card[role.value].format(mates=self.seats(mates)))
        if king and role is Role.WOLF:
            lines.append(card["king"].format(king=self.seat(king)))
        return "\n".join(lines)

    def event(self, event: Event) -> str:
        """What the moderator says of an event; empty for the deal, which the card tells."""
        if event.what in (Happening.DEAL, Happening.TEAM):
            return ""
        data = event.data
        return str(self.data["events"][_form(event)]).format(
            day=event.day,
            seat=self.seat(event.seat),
            target=self.seat(event.target),
            seats=self.seats(data.get("seats", ())),
            text=data.get("text", ""),
            side=self.data["sides"].get(data.get("side", ""), ""),
            ballots=self._ballots(data.get("ballots", {})),
        )

    def _ballots(self, ballots: dict[int, int]) -> str:
        return self._join(f"{self.seat(voter)}→{self.seat(choice)}" for voter, choice in ballots.items())

    def _join(self, names: Iterable[str]) -> str:
        return str(self.data["list"]).join(names) or str(self.data["nobody"])


def _form(event: Event) -> str:
    """Which of the texts of an event's kind is meant."""
    name = event.what.value
    forms: dict[Happening, str] = {
        Happening.GUARDED: "" if event.target else "_nobody",
        Happening.WITCH: f"_{event.data.get('potion')}",
        Happening.GUN: "_yes" if event.data.get("may_shoot") else "_no",
        Happening.DAWN: "" if event.data.get("seats") else "_peace",
        Happening.SAID: "_last_words" if event.data.get("kind") == Kind.LAST_WORDS else "",
        Happening.BADGE: "" if event.target else "_torn",
        Happening.OVER: f"_{event.data.get('winner') or 'draw'}",
    }
    return name + forms.get(event.what, "")


@cache
def wording(language: str) -> Wording:
    """The words of ``zh`` or ``en``."""
    path = PROMPTS / f"{language}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in PROMPTS.glob("*.yaml")))
        raise ValueError(f"there are no prompts in {language!r}; choose one of {known}")
    return Wording(language, yaml.safe_load(path.read_text(encoding="utf-8")))

"""Decisions as the arguments of a finish tool: what a model must fill in, and how that reads as an answer.

Two forms. ``question``: the tool is the same for every decision, and the question names the legal choices.
Chat templates write tools at the beginning of the prompt, so only with this form do the prompts of a seat
extend one another. ``schema``: the tool has just the fields of the decision, the legal choices as an enum.
Both are validated alike: an answer that is not legal goes back to the model with the reason.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, create_model, field_validator, model_validator

from werewolf.engine import Answer, Ask, Kind, Say, Statement
from werewolf.wording import Wording

Form = Literal["question", "schema"]
Claim = Literal["pass", "accuse", "wolf", "good"]


class NotLegal(ValueError):
    """A decision that the rules do not allow; the text goes to the model."""


def read(ask: Ask, words: Wording, given: dict[str, Any]) -> Answer:
    """The answer that filled-in fields amount to."""
    if ask.spoken:
        return _said(ask, words, given)
    labels = words.labels(ask)
    choice = str(given.get("choice") or "").strip()
    if choice not in labels:
        raise NotLegal(f"choice: {choice!r} is not one of {', '.join(labels)}")
    return labels[choice]


def _said(ask: Ask, words: Wording, given: dict[str, Any]) -> Say:
    """A speech. A claim that the moment does not allow (at night, in last words) is taken for none."""
    text = str(given.get("speech") or "").strip()
    if not text:
        raise NotLegal("speech: must not be empty")
    agree = bool(given.get("agree"))
    claim = given.get("claim") or "pass"
    if claim == "pass" or len(ask.options) == 1:
        return Say(text, agree=agree)
    about = {words.seat(o.seat): o for o in ask.options if isinstance(o, Statement) and o.claim == claim}
    name = str(given.get("about") or "").strip()
    if name not in about:
        raise NotLegal(f"about: {name!r} is not one of {', '.join(about)}; or let claim be 'pass'")
    return Say(text, about[name], agree)


def question(ask: Ask, words: Wording, form: Form) -> str:
    """What the moderator asks; with the form ``question``, and the choices there are."""
    text = words.question(ask)
    if form == "schema" or ask.spoken:
        return text
    return f"{text} [choice: {' | '.join(words.labels(ask))}]"


def decision(ask: Ask, words: Wording, form: Form) -> type[BaseModel]:
    """The model that a decision's fields must satisfy."""
    fields: dict[str, Any] = _all(words) if form == "question" else _only(ask, words)
    return create_model("Decision", __base__=_validated(ask, words), **fields)


def _validated(ask: Ask, words: Wording) -> type[BaseModel]:
    class Checked(BaseModel):
        @field_validator("*", mode="before")
        @classmethod
        def _nothing(cls, value: Any) -> Any:
            return "" if value is None else value

        @model_validator(mode="after")
        def _legal(self) -> Checked:
            read(ask, words, self.model_dump())
            return self

    return Checked


def _all(words: Wording) -> dict[str, Any]:
    """The fields of every decision there is."""
    return {
        "reasoning": (str, Field("", description=words.field("reasoning"))),
        "choice": (str, Field("", description=words.field("choice"))),
        "speech": (str, Field("", description=words.field("speech"))),
        "claim": (Claim, Field("pass", description=words.field("claim"))),
        "about": (str, Field("", description=words.field("about"))),
        "agree": (bool, Field(False, description=words.field("agree"))),
    }


def _only(ask: Ask, words: Wording) -> dict[str, Any]:
    """The fields of one decision, with the legal choices as an enum."""
    every = _all(words)
    if not ask.spoken:
        enum: Any = Literal[tuple(words.labels(ask))]
        return {"reasoning": every["reasoning"], "choice": (enum, Field(description=words.field("choice")))}
    names = ["reasoning", "speech"]
    names += ["agree"] if ask.kind is Kind.WOLF_TALK else []
    names += ["claim", "about"] if len(ask.options) > 1 else []
    return {name: every[name] for name in names}

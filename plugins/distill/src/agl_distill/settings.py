"""The field ``distill`` of a run's description."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator, model_validator

from agentlightning.types.sections import Section, Text
from agl_distill.divergence import DIVERGENCES, Divergence

SELF = "self"
"""The teacher that is the run's own policy, as it was when the run began."""


class EndpointSection(Section):
    """A server whose /v1/completions returns ``prompt_logprobs``, such as vLLM's."""

    endpoint: str = Field(pattern=r"^https?://")
    """Its base URL, with ``/v1``."""
    model: str
    """The name of the teacher there."""
    api_key_env: str = ""
    """Environment variable that holds its key; empty: it asks for none."""
    concurrency: int = Field(default=8, ge=1)
    """Requests that it gets at a time."""
    timeout_seconds: float = Field(default=120.0, gt=0)
    """Of one request."""


class DistillSection(Section):
    """Who teaches, and how much it counts."""

    teacher: str | EndpointSection | None = None
    """The teacher of every policy that is trained: a folder, the name of a pretrained policy, ``self`` (the
    policy as the run began with it, which needs a ``hint``), or ``{endpoint: …, model: …}``."""
    teachers: dict[str, str | EndpointSection] = {}
    """Policy → its teacher, in a run with named policies, in place of ``teacher``."""
    coefficient: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """What the teacher's advantage is multiplied with before it is added to that of the reward."""
    divergence: Divergence = "reverse"
    """Which divergence of policy and teacher falls: ``reverse`` or ``forward`` KL, or ``jsd``."""
    beta: float | None = Field(default=None, gt=0, lt=1)
    """The teacher's weight in ``jsd``; none: 0.5. Towards 0 it is the forward KL, towards 1 the reverse."""
    hint: Text = None
    """``module:function`` that gives the teacher a text which the policy does not see:
    ``(task, rollout, group) -> str``."""
    tries: int = Field(default=3, ge=1)
    """How often a teacher is asked for a row before its calls are left out."""

    @field_validator("divergence", mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        if given not in DIVERGENCES:
            raise ValueError(
                f"{given!r} is none of {', '.join(DIVERGENCES)}; each is estimated from the sampled token, "
                "since no driver trains on distributions over the whole vocabulary (a row has one advantage "
                "a token)"
            )
        return given

    @model_validator(mode="after")
    def _teachers(self) -> Any:
        if (self.teacher is None) == (not self.teachers):
            raise ValueError("give teacher, or teachers for a run with named policies")
        if SELF in (self.teacher, *self.teachers.values()) and self.hint is None:
            raise ValueError(
                "teacher: self: a policy learns nothing from itself; give it a hint, which the agent does "
                "not see"
            )
        if self.beta is not None and self.divergence != "jsd":
            raise ValueError(f"beta: {self.divergence!r} has none; drop it, or set divergence: jsd")
        return self


class DistilledRun(Section):
    """The field ``distill`` of a run."""

    distill: DistillSection | None = None
    """On-policy distillation: who teaches the run's policies, and how (``docs/algorithms.md``)."""

"""``GET /metrics`` of the engine: Prometheus' text format, or the same state as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agentlightning.webserver.prometheus import Exposed, Values, exposition, families

PREFIX: Final = "agl_engine_"
_BY: Final = ("policy",)
EXPOSED: Final = (
    Exposed(f"{PREFIX}version", "gauge", "Version of the policy that is served.", _BY),
    Exposed(f"{PREFIX}paused", "gauge", "1 while no request begins.", _BY),
    Exposed(f"{PREFIX}closed", "gauge", "1 once the engine has failed or was closed.", _BY),
    Exposed(f"{PREFIX}running", "gauge", "Samples that are generated now.", _BY),
    Exposed(f"{PREFIX}waiting", "gauge", "Samples that wait for room.", _BY),
    Exposed(f"{PREFIX}generated_tokens", "counter", "Tokens of answers.", _BY),
    Exposed(f"{PREFIX}prompt_tokens", "counter", "Tokens of prompts.", _BY),
    Exposed(f"{PREFIX}reused_tokens", "counter", "Tokens of prompts that needed no computation.", _BY),
    Exposed(f"{PREFIX}prefix_hits", "counter", "Samples whose prompt began like an earlier one.", _BY),
    Exposed(f"{PREFIX}steps", "counter", "Passes through the network.", _BY),
    Exposed(f"{PREFIX}requests", "counter", "Requests.", _BY),
    Exposed(f"{PREFIX}finished", "counter", "Samples that were finished.", _BY),
    Exposed(f"{PREFIX}cancelled", "counter", "Requests that were cancelled.", _BY),
    Exposed(f"{PREFIX}hints", "counter", "Requests with an effort or verbosity, which have no effect.", _BY),
    Exposed(f"{PREFIX}failed", "counter", "Requests that failed.", _BY),
)


def prometheus(states: Mapping[str, Mapping[str, Any]], accept: str) -> tuple[bytes, str]:
    """Return body and content type for the state of each policy (``Engine.status``)."""
    values: Values = {
        one.name: {
            (policy,): _number(state[one.name.removeprefix(PREFIX)]) for policy, state in states.items()
        }
        for one in EXPOSED
    }
    return exposition(families(EXPOSED, values), accept)


def _number(value: Any) -> float:
    """A number as it is; of a state, whether it holds."""
    return float(value) if isinstance(value, int | float) else float(bool(value))
